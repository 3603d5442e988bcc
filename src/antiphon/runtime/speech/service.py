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

from antiphon.config.settings import TURN_MODEL, VAD_MODEL, SpeechSettings
from antiphon.engine_api.engine import Engine
from antiphon.errors import ApiError, ServerError, quote_list
from antiphon.weights import catalogue, fetch, verify

if TYPE_CHECKING:
    from antiphon.engines.cascade.engine import CountSpeculation
    from antiphon.engines.cascade.parts import SpeechStack
    from antiphon.speech.audio_files.decode import AudioFiles
    from antiphon.speech.base import Synthesizer, Transcriber

KNOWN_VOICES = ("alloy", "ash", "ballad", "coral", "echo", "sage", "shimmer", "verse", "marin", "cedar")
"""Voices that clients ask for unless they are told otherwise; where a mouth has none of that name, its first one answers to it."""

_FILE_LIBRARIES = ("soundfile", "python_multipart")
"""What files of sound, and uploads of them, take beside what ears and a voice do."""


class SpeechService:
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
        stack: "SpeechStack | None" = None,
        count_speculation: "CountSpeculation" = lambda _outcome: None,
    ) -> None:
        self._settings = settings
        self._weights = weights
        self._secrets = secrets
        self._notice = notice
        self._count_speculation = count_speculation
        self._load_lock = asyncio.Lock()
        self._is_loaded = False
        self._stack: SpeechStack | None = stack
        self._owns_stack = stack is None
        self._audio_files: AudioFiles | None = None
        self._wrapped_engines: WeakValueDictionary[int, Engine] = WeakValueDictionary()
        self.missing_reason = None if stack is not None else missing_reason(settings, weights)
        if self.missing_reason and settings.enabled:
            raise ServerError(f"`speech.enabled` is on, but {self.missing_reason}")

    @property
    def stack(self) -> "SpeechStack":
        """
        The ears and the voice, ready or not.

        Raises:
            ServerError: there are none.
        """
        if self._stack is None and self.missing_reason is None:
            self._stack = self._build_stack()
        if self._stack is None:
            raise ServerError(f"This server has no ears and no voice: {self.missing_reason}", status=501, code="speech_not_available")
        return self._stack

    async def load(self) -> "SpeechStack":
        """
        The ears and the voice, loaded.

        Raises:
            ApiError: there are none, or they can't be loaded.
        """
        parts = self.stack
        async with self._load_lock:
            if not self._is_loaded:
                if self._owns_stack:
                    await asyncio.to_thread(_verify_weights, self._settings, self._weights)
                await parts.start()
                self._is_loaded = True
        return parts

    @property
    def audio_files(self) -> "AudioFiles":
        """
        What reads and writes files of sound.

        Raises:
            ServerError: what that takes is not installed.
        """
        if self._audio_files is None:
            absent = [name for name in _FILE_LIBRARIES if importlib.util.find_spec(name) is None]
            if absent:
                raise ServerError(
                    f"Files of sound can't be read: {quote_list(absent)} are not installed. Run `make install`, or "
                    "`pip install 'antiphon[speech]'`.",
                    status=501,
                    code="speech_not_available",
                )
            from antiphon.speech.audio_files.decode import AudioFiles  # noqa: PLC0415 - as in `_cascade`

            self._audio_files = AudioFiles()
        return self._audio_files

    async def stop(self) -> None:
        """Let go of everything; idempotent."""
        if self._audio_files is not None:
            await self._audio_files.stop()
        if self._stack is not None:  # some of them may be loaded, though not all could be
            self._is_loaded = False
            await self._stack.stop()

    def with_speech(self, engine: Engine) -> Engine:
        """The engine with ears and a voice; as it is where it has its own, or there are none."""
        abilities = engine.capabilities
        if abilities.listens or (abilities.audio_out and not abilities.hears_speech) or self.missing_reason is not None:
            return engine
        # Workers come and go, and what was put around them goes with them. While it is there it keeps its engine, and the id is that one's.
        around = self._wrapped_engines.get(id(engine))
        if around is None:
            around = self._wrapped_engines[id(engine)] = self._build_cascade(engine)
        return around

    def _build_cascade(self, engine: Engine) -> Engine:
        from antiphon.engines.cascade.engine import Cascade  # noqa: PLC0415 - its libraries take a while to load, and many servers need none

        async def ready() -> None:
            await self.load()

        try:
            return Cascade(
                engine, self.stack, ensure_ready=ready, speculates=self._settings.speculation, count_speculation=self._count_speculation
            )
        except ServerError:
            return engine

    def _build_stack(self) -> "SpeechStack | None":
        from antiphon.engines.cascade.parts import SpeechStack  # noqa: PLC0415 - as above
        from antiphon.speech.dsp import noise  # noqa: PLC0415 - as above
        from antiphon.speech.turn_detection import smart_turn, vad  # noqa: PLC0415 - as above

        try:
            mouth, voices = self._build_synthesizer()
            return SpeechStack(
                vad=vad.SileroVad(self._model_path(VAD_MODEL)),
                smart_turn=smart_turn.SmartTurn(self._model_path(TURN_MODEL)),
                transcriber=self._build_transcriber(),
                synthesizer=mouth,
                noise_reduction=noise.available_kinds(),
                voices=voices,
            )
        except ApiError as fault:
            self.missing_reason = fault.message
            self._notice(f"There are no ears and no voice: {fault.message}")
            return None

    def _model_path(self, model: str) -> Path:
        return catalogue.find(model).main_file(self._weights / model)

    def _build_transcriber(self) -> "Transcriber":
        settings, model = self._settings, self._settings.ears
        if settings.ears_url is not None:
            from antiphon.speech.stt.openai import OpenAITranscriber, TranscriptionServer  # noqa: PLC0415 - as above

            key = self._secrets.get(settings.ears_key_env or "")
            server = TranscriptionServer(base_url=settings.ears_url, model=model, languages=settings.ears_languages, api_key=key)
            return OpenAITranscriber(server)
        if model.startswith("whisper"):
            from antiphon.speech.stt.whisper import WhisperTranscriber  # noqa: PLC0415 - as above

            return WhisperTranscriber(self._weights / model, name=model)
        from antiphon.speech.stt.moonshine import MoonshineTranscriber  # noqa: PLC0415 - as above

        return MoonshineTranscriber(self._weights / model, name=model)

    def _build_synthesizer(self) -> "tuple[Synthesizer, tuple[str, ...]]":
        settings, given = self._settings, self._settings.voice_by_alias
        if settings.voice_url is not None:
            from antiphon.speech.tts.openai import OpenAISynthesizer, SpeechServer  # noqa: PLC0415 - as above

            key = self._secrets.get(settings.voice_key_env or "")
            names = settings.voices or KNOWN_VOICES
            server = SpeechServer(base_url=settings.voice_url, model=settings.voice, voices=names, api_key=key, aliases=dict(given))
            return OpenAISynthesizer(server), (*names, *given)
        found = self._build_voice_process({})
        aliases = dict.fromkeys((name for name in KNOWN_VOICES if name not in found.voices), found.voices[0]) | dict(given)
        return self._build_voice_process(aliases), (*found.voices, *aliases)

    def _build_voice_process(self, aliases: Mapping[str, str]) -> "Synthesizer":
        settings = self._settings
        folder = self._weights / settings.voice
        if settings.voice.startswith("kokoro"):
            from antiphon.speech.tts.kokoro import kokoro_synthesizer  # noqa: PLC0415 - as above

            return kokoro_synthesizer(folder, aliases=aliases, notice=self._notice)
        from antiphon.speech.tts.piper import piper_synthesizer  # noqa: PLC0415 - as above

        return piper_synthesizer((folder, *map(Path, settings.voice_folders)), aliases=aliases, notice=self._notice)


def _verify_weights(settings: SpeechSettings, weights: Path) -> None:
    """Refuse to load what was altered since it was fetched."""
    for name in settings.catalogue_models:
        if paths := verify.altered_files(catalogue.find(name), weights / name):
            raise ServerError(
                f"The model '{name}' is not what it should be: {paths[0]} is missing, or was altered. Run `antiphon models pull {name}`.",
                code="weights_unavailable",
            )


def _required_modules(settings: SpeechSettings) -> Iterator[str]:
    """The modules that are needed, as they are set; found, and not loaded."""
    yield from ("numpy", "onnxruntime", "soundfile", "soxr")
    if settings.voice_url is None:
        yield "piper"
    if settings.ears_url is None and settings.ears.startswith("whisper"):
        yield "faster_whisper"


def missing_modules(settings: SpeechSettings) -> list[str]:
    """The modules that are needed, as they are set, and are not here."""
    return [name for name in _required_modules(settings) if importlib.util.find_spec(name) is None]


def missing_reason(settings: SpeechSettings, weights: Path) -> str | None:
    """Why there can be no ears and no voice, and how to get them; None where there can."""
    if settings.enabled is False:
        return "`speech.enabled` is off."
    if absent := missing_modules(settings):
        return f"these are not installed: {', '.join(absent)}. Run `make install`, or `pip install 'antiphon[speech,piper]'`."
    here = {model.name for model in fetch.installed_models(weights) if model.is_complete}
    away = [name for name in settings.catalogue_models if name not in here]
    if away:
        return f"these models are not here: {', '.join(away)}. Run `antiphon models pull {' '.join(away)}`."
    return None
