"""
Presets and voices, at the addresses that MiniCPM-o's pages know them by, all under `/api`.

Sound is kept as files and given as what a session takes for a voice: float32 mono at 16 kHz, in base64.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.audio import SAMPLE_BYTES
from antiphon.errors import ClientMistake
from antiphon.runtime.access.keys import Scope
from antiphon.runtime.core import presets
from antiphon.runtime.core.ids import mint
from antiphon.runtime.core.presets import Folder
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.body import body_of
from antiphon.server.http.errors import json_reply
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode
from antiphon.wire.minicpmo import endpoints as wire
from antiphon.wire.minicpmo.media import to_floats

VOICE_S_MOST = 60


def routes(service: Service) -> list[Route]:
    """Everything under `/api` that has to do with presets and voices."""
    shelf = _Shelf(service)
    rows: Sequence[tuple[str, str, Any, Scope]] = (
        ("GET", "/api/presets", shelf.list_presets, "realtime"),
        ("GET", "/api/presets/{mode}/{id}/audio", shelf.preset_audio, "realtime"),
        ("GET", "/api/default_ref_audio", shelf.default_voice, "realtime"),
        ("GET", "/api/assets/ref_audio", shelf.list_voices, "realtime"),
        ("POST", "/api/assets/ref_audio", shelf.keep_voice, "admin"),
        ("GET", "/api/assets/ref_audio/{id}", shelf.voice, "realtime"),
        ("DELETE", "/api/assets/ref_audio/{id}", shelf.drop_voice, "admin"),
        ("GET", "/api/frontend_defaults", shelf.defaults, "realtime"),
    )
    return [GuardedRoute(path, endpoint, service=service, access=access, methods=[method]) for method, path, endpoint, access in rows]


class _Shelf:
    """Presets and voices, as they are asked for."""

    def __init__(self, service: Service) -> None:
        self._service = service
        path = Path(service.config.home, service.config.minicpmo.presets or "minicpmo")
        self._folder = Folder(path, lambda line: logs.get().warning("preset", reason=line))

    async def list_presets(self, _request: Request) -> Response:
        """`GET /api/presets`."""
        found = await asyncio.to_thread(self._folder.presets)
        told: wire.Presets = {}
        for mode, each in found.items():
            told[mode] = [await self._told(mode, preset_id, preset) for preset_id, preset in each]
        return json_reply(encode(told))

    async def _told(self, mode: str, preset_id: str, preset: presets.Preset) -> wire.Preset:
        """A preset without its sounds."""
        content: list[wire.PresetText | wire.PresetSound] = []
        for piece in preset.system_content:
            if piece.audio is None:
                content.append(wire.PresetText(text=piece.text or ""))
            else:
                content.append(wire.PresetSound(name=piece.audio, path=piece.audio, duration=await self._duration(mode, piece.audio)))
        name = preset.ref_audio
        return wire.Preset(
            id=preset_id,
            name=preset.name,
            description=preset.description,
            order=preset.order,
            system_prompt=UNSET if preset.system_prompt is None else preset.system_prompt,
            system_content=content or UNSET,
            ref_audio=UNSET if name is None else wire.PresetReference(name=name, path=name, duration=await self._duration(mode, name)),
        )

    async def _duration(self, mode: str, name: str) -> float:
        """Of a file of sound, in seconds; 0 for one that is missing or can't be read, which whoever asks for it is told."""
        try:
            pcm = await self._heard(await asyncio.to_thread(self._folder.sound, mode, name))
        except ClientMistake as mistake:
            logs.get().warning("preset", sound=f"{mode}/{name}", reason=mistake.message)
            return 0.0
        return _seconds(pcm)

    async def preset_audio(self, request: Request) -> Response:
        """`GET /api/presets/{mode}/{id}/audio`."""
        mode = request.path_params["mode"]
        preset = await asyncio.to_thread(self._folder.preset, mode, request.path_params["id"])
        told = wire.PresetAudio()
        if preset.sounds:
            told.system_content_audio = [await self._file(mode, name) for name in preset.sounds]
        if preset.ref_audio is not None:
            told.ref_audio = await self._file(mode, preset.ref_audio)
        return json_reply(encode(told))

    async def _file(self, mode: str, name: str) -> wire.PcmFile:
        pcm = await self._heard(await asyncio.to_thread(self._folder.sound, mode, name))
        return wire.PcmFile(data=to_floats(pcm), name=name, duration=_seconds(pcm))

    async def default_voice(self, _request: Request) -> Response:
        """`GET /api/default_ref_audio`."""
        name, file = await asyncio.to_thread(self._folder.default)
        return _reference(name, await self._heard(file))

    async def voice(self, request: Request) -> Response:
        """`GET /api/assets/ref_audio/{id}`."""
        told, file = await asyncio.to_thread(self._folder.voice, request.path_params["id"])
        return _reference(told.name, await self._heard(file))

    async def list_voices(self, _request: Request) -> Response:
        """`GET /api/assets/ref_audio`."""
        found = [_voice(each) for each in await asyncio.to_thread(self._folder.voices)]
        return json_reply(encode(wire.VoiceList(total=len(found), ref_audios=found)))

    async def keep_voice(self, request: Request) -> Response:
        """`POST /api/assets/ref_audio`."""
        upload = wire.decode_voice_upload(await body_of(request))
        if len(upload.audio_base64) > wire.UPLOAD_BYTES_MOST:
            raise ClientMistake(
                f"The voice is larger than {wire.UPLOAD_BYTES_MOST} bytes.", status=413, code="request_too_large", param="audio_base64"
            )
        pcm = await self._heard(upload.audio_base64, "audio_base64")
        told = await asyncio.to_thread(self._folder.keep, mint("ref"), upload.name, pcm)
        return json_reply(encode(wire.VoiceKept(id=told.id, name=told.name)))

    async def drop_voice(self, request: Request) -> Response:
        """`DELETE /api/assets/ref_audio/{id}`."""
        told = await asyncio.to_thread(self._folder.drop, request.path_params["id"])
        return json_reply(encode(wire.VoiceKept(id=told.id, name=told.name)))

    async def defaults(self, _request: Request) -> Response:
        """`GET /api/frontend_defaults`."""
        return json_reply(encode(wire.FrontendDefaults()))

    async def _heard(self, file: bytes, param: str = "file") -> bytes:
        """
        The sound in a file: s16le mono at 16 kHz.

        Raises:
            ClientMistake: it can't be read, or is too long.
            OurFault: what reads it is not installed.
        """
        pcm = bytearray()
        try:
            async for piece in self._service.speech.recordings.sound(file):
                pcm += piece
                if _seconds(pcm) > VOICE_S_MOST:
                    raise ClientMistake(f"The sound is longer than {VOICE_S_MOST} seconds.", code="audio_too_long", param=param)
        except ClientMistake as mistake:
            mistake.param = param
            raise
        return bytes(pcm)


def _seconds(pcm: bytes | bytearray) -> float:
    return round(len(pcm) / (SAMPLE_BYTES * presets.RATE_HZ), 3)


def _reference(name: str, pcm: bytes) -> Response:
    samples = len(pcm) // SAMPLE_BYTES
    return json_reply(encode(wire.ReferenceAudio(name=name, duration=_seconds(pcm), samples=samples, base64=to_floats(pcm))))


def _voice(kept: presets.Voice) -> wire.Voice:
    made = datetime.fromtimestamp(kept.created_at, UTC).isoformat(timespec="seconds")
    return wire.Voice(id=kept.id, name=kept.name, duration_ms=kept.duration_ms, created_at=made)
