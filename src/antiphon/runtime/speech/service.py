"""
The ears and the voice of a server: which they are, whether they are here, and when they are loaded.

They are loaded for the first conversation that needs them: many servers only ever answer in writing.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from antiphon.config.settings import TURN, VAD, SpeechSettings
from antiphon.engine_api.engine import Engine
from antiphon.errors import Fault, OurFault, listed
from antiphon.weights import catalogue, fetch, verify

if TYPE_CHECKING:
    from antiphon.engines.cascade.engine import Count
    from antiphon.engines.cascade.parts import Parts
    from antiphon.speech.audio_files.decode import Recordings
    from antiphon.speech.base import Ear, Mouth

KNOWN_VOICES = ("alloy", "ash", "ballad", "coral", "echo", "sage", "shimmer", "verse", "marin", "cedar")
"""Voices that clients ask for unless they are told otherwise; where a mouth has none of that name, its first one answers to it."""

_FILE_LIBRARIES = ("soundfile", "python_multipart")
"""What files of sound, and uploads of them, take beside what ears and a voice do."""


class Speech:
    """
    What hears and speaks for all models that only read and write.

    Args:
        weights: the folder of verified model files.
        notice: takes lines for the operator.
        parts: those to hear and to speak with, where that is not for the settings to say.
        count: is told of answers that are begun before they are asked for, as `cascade.Count`.

    Attributes:
        missing: why there is none, and how to get it; None where there is.
    """

    def __init__(
        self,
        settings: SpeechSettings,
        weights: Path,
        secrets: Mapping[str, str],
        notice: Callable[[str], None] = lambda _line: None,
        parts: "Parts | None" = None,
        count: "Count" = lambda _outcome: None,
    ) -> None:
        self._settings = settings
        self._weights = weights
        self._secrets = secrets
        self._notice = notice
        self._count = count
        self._loading = asyncio.Lock()
        self._is_ready = False
        self._parts: Parts | None = parts
        self._are_ours = parts is None
        self._recordings: Recordings | None = None
        self._around: WeakValueDictionary[int, Engine] = WeakValueDictionary()
        self.missing = None if parts is not None else missing(settings, weights)
        if self.missing and settings.enabled:
            raise OurFault(f"`speech.enabled` is on, but {self.missing}")

    @property
    def parts(self) -> "Parts":
        """
        The ears and the voice, ready or not.

        Raises:
            OurFault: there are none.
        """
        if self._parts is None and self.missing is None:
            self._parts = self._made()
        if self._parts is None:
            raise OurFault(f"This server has no ears and no voice: {self.missing}", status=501, code="speech_not_available")
        return self._parts

    async def ready(self) -> "Parts":
        """
        The ears and the voice, loaded.

        Raises:
            Fault: there are none, or they can't be loaded.
        """
        parts = self.parts
        async with self._loading:
            if not self._is_ready:
                if self._are_ours:
                    await asyncio.to_thread(_check, self._settings, self._weights)
                await parts.start()
                self._is_ready = True
        return parts

    @property
    def recordings(self) -> "Recordings":
        """
        What reads and writes files of sound.

        Raises:
            OurFault: what that takes is not installed.
        """
        if self._recordings is None:
            absent = [name for name in _FILE_LIBRARIES if importlib.util.find_spec(name) is None]
            if absent:
                raise OurFault(
                    f"Files of sound can't be read: {listed(absent)} are not installed. Run `make install`, or "
                    "`pip install 'antiphon[speech]'`.",
                    status=501,
                    code="speech_not_available",
                )
            from antiphon.speech.audio_files.decode import Recordings  # noqa: PLC0415 - as in `_cascade`

            self._recordings = Recordings()
        return self._recordings

    async def stop(self) -> None:
        """Let go of everything; idempotent."""
        if self._recordings is not None:
            await self._recordings.stop()
        if self._parts is not None:  # some of them may be loaded, though not all could be
            self._is_ready = False
            await self._parts.stop()

    def around(self, engine: Engine) -> Engine:
        """The engine with ears and a voice; as it is where it has its own, or there are none."""
        abilities = engine.abilities
        if abilities.listens or (abilities.audio_out and not abilities.hears_speech) or self.missing is not None:
            return engine
        # Workers come and go, and what was put around them goes with them. While it is there it keeps its engine, and the id is that one's.
        around = self._around.get(id(engine))
        if around is None:
            around = self._around[id(engine)] = self._cascade(engine)
        return around

    def _cascade(self, engine: Engine) -> Engine:
        from antiphon.engines.cascade.engine import Cascade  # noqa: PLC0415 - its libraries take a while to load, and many servers need none

        async def ready() -> None:
            await self.ready()

        try:
            return Cascade(engine, self.parts, ready=ready, speculates=self._settings.speculation, count=self._count)
        except OurFault:
            return engine

    def _made(self) -> "Parts | None":
        from antiphon.engines.cascade.parts import Parts  # noqa: PLC0415 - as above
        from antiphon.speech.dsp import noise  # noqa: PLC0415 - as above
        from antiphon.speech.turn_detection import smart_turn, vad  # noqa: PLC0415 - as above

        try:
            mouth, voices = self._mouth()
            return Parts(
                activity=vad.VoiceActivity(self._file(VAD)),
                smart_turn=smart_turn.SmartTurn(self._file(TURN)),
                ear=self._ear(),
                mouth=mouth,
                noise_reduction=noise.kinds(),
                voices=voices,
            )
        except Fault as fault:
            self.missing = fault.message
            self._notice(f"There are no ears and no voice: {fault.message}")
            return None

    def _file(self, model: str) -> Path:
        return catalogue.find(model).main(self._weights / model)

    def _ear(self) -> "Ear":
        settings, model = self._settings, self._settings.ears
        if settings.ears_url is not None:
            from antiphon.speech.stt.openai import TranscriptionServer, UpstreamEar  # noqa: PLC0415 - as above

            key = self._secrets.get(settings.ears_key_env or "")
            server = TranscriptionServer(base_url=settings.ears_url, model=model, languages=settings.ears_languages, api_key=key)
            return UpstreamEar(server)
        if model.startswith("whisper"):
            from antiphon.speech.stt.whisper import Whisper  # noqa: PLC0415 - as above

            return Whisper(self._weights / model, name=model)
        from antiphon.speech.stt.moonshine import Moonshine  # noqa: PLC0415 - as above

        return Moonshine(self._weights / model, name=model)

    def _mouth(self) -> "tuple[Mouth, tuple[str, ...]]":
        settings, given = self._settings, self._settings.aliases
        if settings.voice_url is not None:
            from antiphon.speech.tts.openai import SpeechServer, UpstreamMouth  # noqa: PLC0415 - as above

            key = self._secrets.get(settings.voice_key_env or "")
            names = settings.voices or KNOWN_VOICES
            server = SpeechServer(base_url=settings.voice_url, model=settings.voice, voices=names, api_key=key, aliases=dict(given))
            return UpstreamMouth(server), (*names, *given)
        found = self._child({})
        aliases = dict.fromkeys((name for name in KNOWN_VOICES if name not in found.voices), found.voices[0]) | dict(given)
        return self._child(aliases), (*found.voices, *aliases)

    def _child(self, aliases: Mapping[str, str]) -> "Mouth":
        settings = self._settings
        folder = self._weights / settings.voice
        if settings.voice.startswith("kokoro"):
            from antiphon.speech.tts.kokoro import kokoro  # noqa: PLC0415 - as above

            return kokoro(folder, aliases=aliases, notice=self._notice)
        from antiphon.speech.tts.piper import piper  # noqa: PLC0415 - as above

        return piper((folder, *map(Path, settings.voice_folders)), aliases=aliases, notice=self._notice)


def _check(settings: SpeechSettings, weights: Path) -> None:
    """Refuse to load what was altered since it was fetched."""
    for name in settings.models:
        if paths := verify.altered(catalogue.find(name), weights / name):
            raise OurFault(
                f"The model '{name}' is not what it should be: {paths[0]} is missing, or was altered. Run `antiphon models pull {name}`.",
                code="weights_unavailable",
            )


def _libraries(settings: SpeechSettings) -> Iterator[str]:
    """The modules that are needed, as they are set; found, and not loaded."""
    yield from ("numpy", "onnxruntime", "soundfile", "soxr")
    if settings.voice_url is None:
        yield "piper"
    if settings.ears_url is None and settings.ears.startswith("whisper"):
        yield "faster_whisper"


def not_installed(settings: SpeechSettings) -> list[str]:
    """The modules that are needed, as they are set, and are not here."""
    return [name for name in _libraries(settings) if importlib.util.find_spec(name) is None]


def missing(settings: SpeechSettings, weights: Path) -> str | None:
    """Why there can be no ears and no voice, and how to get them; None where there can."""
    if settings.enabled is False:
        return "`speech.enabled` is off."
    if absent := not_installed(settings):
        return f"these are not installed: {', '.join(absent)}. Run `make install`, or `pip install 'antiphon[speech,piper]'`."
    here = {model.name for model in fetch.installed(weights) if model.whole}
    away = [name for name in settings.models if name not in here]
    if away:
        return f"these models are not here: {', '.join(away)}. Run `antiphon models pull {' '.join(away)}`."
    return None
