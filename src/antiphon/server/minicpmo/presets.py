"""
Presets and voices under `/api`, at the paths that MiniCPM-o's pages use.

Audio is stored as files and returned in the form that sessions take for a voice: float32 mono at 16 kHz, in base64.
"""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from antiphon.audio import SAMPLE_BYTES
from antiphon.errors import ClientError
from antiphon.offload import offload
from antiphon.runtime.core import presets
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.presets import PresetFolder
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.body import read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import BODY_ERRORS, UNAVAILABLE, Operation
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode
from antiphon.wire.minicpmo import endpoints as wire
from antiphon.wire.minicpmo.media import to_floats

MAX_VOICE_S = 60

_ERRORS = {
    404: "There is no such preset, audio file or voice.",
    501: "This server can't read audio files; `message` says how to change that.",
    503: UNAVAILABLE,
}
_UPLOAD_ERRORS = (
    _ERRORS
    | BODY_ERRORS
    | {
        400: "The request is invalid, or the audio can't be read or is too long; `param` names the field.",
        409: "There are too many voices already.",
        413: f"{BODY_ERRORS[413][:-1]}, or the file over {wire.MAX_UPLOAD_BYTES >> 20} MiB.",
    }
)

_LIST_PRESETS = Operation("listPresets", "MiniCPM-o", "List the presets, by mode", wire.Presets, errors=_ERRORS)
_PRESET_AUDIO = Operation("getPresetAudio", "MiniCPM-o", "Retrieve the audio of a preset", wire.PresetAudio, errors=_ERRORS)
_DEFAULT_VOICE = Operation("getDefaultVoice", "MiniCPM-o", "Retrieve the default voice", wire.ReferenceAudio, errors=_ERRORS)
_LIST_VOICES = Operation("listVoices", "MiniCPM-o", "List the stored voices", wire.VoiceList)
_UPLOAD_VOICE = Operation(
    "storeVoice",
    "MiniCPM-o",
    "Store a voice",
    wire.VoiceUploadResult,
    wire.VoiceUpload,
    errors=_UPLOAD_ERRORS,
    description="A file in one of the formats of `POST /v1/audio/transcriptions`, of a minute at most.",
    links=dict.fromkeys(("getVoice", "deleteVoice"), "id"),
)
_GET_VOICE = Operation("getVoice", "MiniCPM-o", "Retrieve a stored voice", wire.ReferenceAudio, errors=_ERRORS)
_DELETE_VOICE = Operation(
    "deleteVoice", "MiniCPM-o", "Delete a stored voice", wire.VoiceUploadResult, errors={404: "There is no such voice."}
)
_FRONTEND_DEFAULTS = Operation("getFrontendDefaults", "MiniCPM-o", "Retrieve the defaults of a page", wire.FrontendDefaults)


def routes(service: Service) -> list[GuardedRoute]:
    """All routes of presets and voices."""
    endpoints = _PresetEndpoints(service)
    return guarded_routes(
        service,
        [
            ("GET", "/api/presets", endpoints.list_presets, "realtime", _LIST_PRESETS),
            ("GET", "/api/presets/{mode}/{id}/audio", endpoints.preset_audio, "realtime", _PRESET_AUDIO),
            ("GET", "/api/default_ref_audio", endpoints.default_voice, "realtime", _DEFAULT_VOICE),
            ("GET", "/api/assets/ref_audio", endpoints.list_voices, "realtime", _LIST_VOICES),
            ("POST", "/api/assets/ref_audio", endpoints.upload_voice, "admin", _UPLOAD_VOICE),
            ("GET", "/api/assets/ref_audio/{id}", endpoints.get_voice, "realtime", _GET_VOICE),
            ("DELETE", "/api/assets/ref_audio/{id}", endpoints.delete_voice, "admin", _DELETE_VOICE),
            ("GET", "/api/frontend_defaults", endpoints.frontend_defaults, "realtime", _FRONTEND_DEFAULTS),
        ],
    )


class _PresetEndpoints:
    """The endpoint functions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        path = Path(service.config.home, service.config.minicpmo.presets or "minicpmo")
        self._folder = PresetFolder(path, lambda line: logs.get().warning("preset", reason=line))
        self._durations_s: dict[Path, tuple[presets.AudioVersion, float]] = {}
        self._measuring = asyncio.Lock()

    async def list_presets(self, _request: Request) -> Response:
        """`GET /api/presets`."""
        presets_by_mode = await asyncio.to_thread(self._folder.presets)
        body: wire.Presets = {}
        for mode, presets_of_mode in presets_by_mode.items():
            body[mode] = [await self._to_wire(mode, preset_id, preset) for preset_id, preset in presets_of_mode]
        return json_response(encode(body))

    async def _to_wire(self, mode: str, preset_id: str, preset: presets.Preset) -> wire.Preset:
        """The preset without its audio."""
        content: list[wire.PresetTextPart | wire.PresetAudioPart] = []
        for part in preset.system_content:
            if part.audio is None:
                content.append(wire.PresetTextPart(text=part.text or ""))
            else:
                content.append(wire.PresetAudioPart(name=part.audio, path=part.audio, duration=await self._duration_s(mode, part.audio)))
        name = preset.ref_audio
        return wire.Preset(
            id=preset_id,
            name=preset.name,
            description=preset.description,
            order=preset.order,
            system_prompt=UNSET if preset.system_prompt is None else preset.system_prompt,
            system_content=content or UNSET,
            ref_audio=UNSET if name is None else wire.PresetReference(name=name, path=name, duration=await self._duration_s(mode, name)),
        )

    async def _duration_s(self, mode: str, name: str) -> float:
        """Seconds of an audio file, measured once until it changes: each list would decode every file again."""
        version = await asyncio.to_thread(self._folder.audio_version, mode, name)
        if version is None:
            return await self._measure_s(mode, name)
        # One at a time, so that lists that are asked for together wait for the first.
        async with self._measuring:
            measurement = self._durations_s.get(version.path)
            if measurement is None or measurement[0] != version:
                measurement = self._durations_s[version.path] = (version, await self._measure_s(mode, name))
            return measurement[1]

    async def _measure_s(self, mode: str, name: str) -> float:
        """Seconds of an audio file; 0 and a warning in the log where it can't be read, so that the other presets are still listed."""
        try:
            pcm = await self._decode_audio(await asyncio.to_thread(self._folder.read_audio, mode, name))
        except ClientError as error:
            logs.get().warning("preset", sound=f"{mode}/{name}", reason=error.message)
            return 0.0
        return _pcm_duration_s(pcm)

    async def preset_audio(self, request: Request) -> Response:
        """`GET /api/presets/{mode}/{id}/audio`."""
        mode = request.path_params["mode"]
        preset = await asyncio.to_thread(self._folder.preset, mode, request.path_params["id"])
        body = wire.PresetAudio()
        if preset.audio_names:
            body.system_content_audio = [await self._pcm_file(mode, name) for name in preset.audio_names]
        if preset.ref_audio is not None:
            body.ref_audio = await self._pcm_file(mode, preset.ref_audio)
        return json_response(encode(body))

    async def _pcm_file(self, mode: str, name: str) -> wire.PcmFile:
        pcm = await self._decode_audio(await asyncio.to_thread(self._folder.read_audio, mode, name))
        return wire.PcmFile(data=to_floats(pcm), name=name, duration=_pcm_duration_s(pcm))

    async def default_voice(self, _request: Request) -> Response:
        """`GET /api/default_ref_audio`."""
        name, file = await asyncio.to_thread(self._folder.default_voice)
        return _reference_response(name, await self._decode_audio(file))

    async def get_voice(self, request: Request) -> Response:
        """`GET /api/assets/ref_audio/{id}`."""
        voice, file = await asyncio.to_thread(self._folder.voice, request.path_params["id"])
        return _reference_response(voice.name, await self._decode_audio(file))

    async def list_voices(self, _request: Request) -> Response:
        """`GET /api/assets/ref_audio`."""
        voices = [_voice(each) for each in await asyncio.to_thread(self._folder.voices)]
        return json_response(encode(wire.VoiceList(total=len(voices), ref_audios=voices)))

    async def upload_voice(self, request: Request) -> Response:
        """`POST /api/assets/ref_audio`."""
        body = await read_json_body(request)
        upload = await offload(len(body), wire.decode_voice_upload, body)
        if len(upload.audio_base64) > wire.MAX_UPLOAD_BYTES:
            raise ClientError(
                f"The voice is larger than {wire.MAX_UPLOAD_BYTES} bytes.", status=413, code="request_too_large", param="audio_base64"
            )
        pcm = await self._decode_audio(upload.audio_base64, "audio_base64")
        voice = await asyncio.to_thread(self._folder.save_voice, new_id("ref"), upload.name, pcm)
        return json_response(encode(wire.VoiceUploadResult(id=voice.id, name=voice.name)))

    async def delete_voice(self, request: Request) -> Response:
        """`DELETE /api/assets/ref_audio/{id}`."""
        voice = await asyncio.to_thread(self._folder.delete_voice, request.path_params["id"])
        return json_response(encode(wire.VoiceUploadResult(id=voice.id, name=voice.name)))

    async def frontend_defaults(self, _request: Request) -> Response:
        """`GET /api/frontend_defaults`."""
        return json_response(encode(wire.FrontendDefaults()))

    async def _decode_audio(self, file: bytes, param: str = "file") -> bytes:
        """
        An audio file as s16le mono at 16 kHz.

        Raises:
            ClientError: it can't be read, or is too long.
            ServerError: the library that reads it is not installed.
        """
        pcm = bytearray()
        try:
            async for chunk in self._service.speech.audio_files.decode(file):
                pcm += chunk
                # While it is decoded: a small file may hold hours.
                if _pcm_duration_s(pcm) > MAX_VOICE_S:
                    raise ClientError(f"The audio is longer than {MAX_VOICE_S} seconds.", code="audio_too_long", param=param)
        except ClientError as error:
            # The decoder knows only the field of transcriptions.
            error.param = param
            raise
        return bytes(pcm)


def _pcm_duration_s(pcm: bytes | bytearray) -> float:
    return round(len(pcm) / (SAMPLE_BYTES * presets.RATE_HZ), 3)


def _reference_response(name: str, pcm: bytes) -> Response:
    samples = len(pcm) // SAMPLE_BYTES
    return json_response(encode(wire.ReferenceAudio(name=name, duration=_pcm_duration_s(pcm), samples=samples, base64=to_floats(pcm))))


def _voice(voice: presets.SavedVoice) -> wire.Voice:
    created_at = datetime.fromtimestamp(voice.created_at, UTC).isoformat(timespec="seconds")
    return wire.Voice(id=voice.id, name=voice.name, duration_ms=voice.duration_ms, created_at=created_at)
