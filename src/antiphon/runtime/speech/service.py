"""
The server's speech models: which they are, whether they are installed, and when they are loaded.

They are loaded after the start, or where that is switched off for the first conversation that needs them.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from antiphon import installation
from antiphon.config.listing import hide_folders
from antiphon.config.settings import TURN_MODEL, VAD_MODEL, SpeechSettings
from antiphon.engine_api.engine import Engine
from antiphon.errors import ApiError, ServerError, quote_list
from antiphon.installation import install_hint
from antiphon.runtime.core import lazy
from antiphon.runtime.speech.transcripts import Transcripts
from antiphon.runtime.speech.warm_up import LoadedParts, import_modules, run_once
from antiphon.speech.base import Synthesizer, Transcriber
from antiphon.speech.tts.voices import kokoro_synthesizer, piper_synthesizer
from antiphon.weights import catalogue, fetch, verify
from antiphon.weights.catalogue import ModelKind
from antiphon.wire.http.queue import WarmUpState

KNOWN_VOICES = ("alloy", "ash", "ballad", "coral", "echo", "sage", "shimmer", "verse", "marin", "cedar")
"""OpenAI's voices, which clients request by default; a synthesizer without one of them uses its first voice instead."""

LOAD_TIMEOUT_S = 120.0
"""How long loading the models may take; a small machine needs 13 s."""

_FILE_LIBRARIES = ("soundfile", "python_multipart")
"""The libraries that audio files and their uploads need, beside those of the speech models."""


class SpeechService:
    """
    Transcription and speech synthesis for all models that only read and write text.

    Args:
        weights: the folder of verified model files.
        secrets: values of environment variables, by name.
        notice: called with a line for the operator.
        stack: the speech models to use in place of those in the settings.
        count_speculation: called with the outcome of each speculative response.

    Attributes:
        missing_reason: why there is no speech, and how to get it, for anybody; None where there is.
        warm_up_state: how far the models are loaded.
        is_loaded: whether they are.
        transcripts: of audio in conversations.
    """

    def __init__(
        self,
        settings: SpeechSettings,
        weights: Path,
        secrets: Mapping[str, str],
        notice: Callable[[str], None] = lambda _line: None,
        stack: "lazy.SpeechStack | None" = None,
        count_speculation: "lazy.CountSpeculation" = lambda _outcome: None,
    ) -> None:
        self.warm_up_state: WarmUpState = "off"
        self.transcripts = Transcripts()
        self._settings = settings
        self._weights = weights
        self._secrets = secrets
        self._notice = notice
        self._count_speculation = count_speculation
        self.is_loaded = False
        self._load_task: asyncio.Task[None] | None = None
        self._parts = LoadedParts()
        self._stack: lazy.SpeechStack | None = stack
        self._owns_stack = stack is None
        self._audio_files: lazy.AudioFiles | None = None
        self._wrapped_engines: WeakValueDictionary[int, Engine] = WeakValueDictionary()
        self.missing_reason = None if stack is not None else missing_reason(settings, weights)
        if self.missing_reason and settings.enabled:
            raise ServerError(f"`speech.enabled` is on, but {self.missing_reason}")

    @property
    def stack(self) -> "lazy.SpeechStack":
        """
        The speech models, loaded or not.

        Raises:
            ServerError: there are none.
        """
        if self._stack is None and self.missing_reason is None:
            self._stack = self._build_stack()
        if self._stack is None:
            raise ServerError(f"Speech is not available on this server: {self.missing_reason}", status=501, code="speech_not_available")
        return self._stack

    async def prepare(self) -> None:
        """Import what `with_speech` needs, in a thread: it takes longer than the event loop may be held."""
        if self._stack is None and self.missing_reason is None:
            await asyncio.to_thread(import_modules)

    async def load(self) -> "lazy.SpeechStack":
        """
        The speech models, loaded. All who come while they are being loaded wait for the same loading, which goes on
        even if all of them leave.

        Raises:
            ApiError: there are none, or they can't be loaded.
        """
        stack = self.stack
        if not self.is_loaded:
            if self._load_task is None or self._load_task.done():
                # Owned here, and ended by `stop`: no one who waits for it may end it for the others.
                self._load_task = asyncio.create_task(self._load(stack), name="speech models")  # noqa: TID251
                self._load_task.add_done_callback(_take_exception)
            await asyncio.shield(self._load_task)
        return stack

    async def _load(self, stack: "lazy.SpeechStack") -> None:
        self.warm_up_state = "running"
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                if self._owns_stack:
                    await asyncio.to_thread(_verify_weights, self._settings, self._weights)
                await self._parts.start(stack.parts)
        except TimeoutError:
            late = ServerError(f"The speech models were not loaded within {LOAD_TIMEOUT_S:g} seconds.")
            raise self._fail("loaded", late) from None
        except Exception as error:  # all who wait for the models must hear of any
            raise self._fail("loaded", error) from None
        self.is_loaded = True
        self.warm_up_state = "done"

    def _fail(self, what: str, error: Exception) -> ApiError:
        """The models could not be loaded or run: tell the operator why, and return what clients may know."""
        self.warm_up_state = "failed"
        if not isinstance(error, ApiError):
            structlog.get_logger().error("speech_models_failed", exc_info=error)
            reason = f"{type(error).__name__}: {error}."
            error = ServerError(f"The speech models could not be {what}. The operator finds the reason in the server's log.")
            error.operator_message = reason
        self._notice(f"The speech models could not be {what}: {error.operator_message} They are tried again when they are needed.")
        error.message = hide_folders(error.message)
        return error

    async def warm_up(self) -> None:
        """
        Load the speech models and run each once, so that the first conversation doesn't wait for it. Models on other
        servers are not asked.

        Raises:
            ApiError: there are none, or they can't be loaded or run.
        """
        self.warm_up_state = "running"
        try:
            await self.prepare()
            stack = await self.load()
            # `load` has set it to `done`, but no model was run yet.
            self.warm_up_state = "running"
            await run_once(stack, transcribes=self._settings.stt_url is None, speaks=self._settings.voice_url is None)
        except Exception as error:
            # Else `load` has told the operator.
            if self.warm_up_state == "running":
                raise self._fail("run", error) from None
            raise
        self.warm_up_state = "done"

    @property
    def audio_files(self) -> "lazy.AudioFiles":
        """
        Reads and writes audio files.

        Raises:
            ServerError: its libraries are not installed.
        """
        if self._audio_files is None:
            missing = installation.missing_modules(_FILE_LIBRARIES)
            if missing:
                raise ServerError(
                    f"Audio files can't be read: {quote_list(missing)} are not installed. {install_hint('speech')}",
                    status=501,
                    code="speech_not_available",
                )
            self._audio_files = lazy.AudioFiles()
        return self._audio_files

    async def stop(self) -> None:
        """Unload everything; idempotent."""
        if self._audio_files is not None:
            await self._audio_files.stop()
        if self._load_task is not None:
            self._load_task.cancel()
            await asyncio.wait([self._load_task])
        if self._stack is not None:  # some of it may be loaded, even if loading failed
            self.is_loaded = False
            self._parts = LoadedParts()
            await self._stack.stop()

    def with_speech(self, engine: Engine) -> Engine:
        """The engine with speech around it, or the engine itself where it has its own or there is none."""
        capabilities = engine.capabilities
        if capabilities.listens or (capabilities.audio_out and not capabilities.hears_speech) or self.missing_reason is not None:
            return engine
        # Weak references: the wrapper is freed with its worker. While it lives it holds its engine, so the id stays
        # unique.
        wrapper = self._wrapped_engines.get(id(engine))
        if wrapper is None:
            wrapper = self._wrapped_engines[id(engine)] = self._build_cascade(engine)
        return wrapper

    def _build_cascade(self, engine: Engine) -> Engine:
        try:
            return lazy.Cascade(
                engine,
                self.stack,
                loader=self,
                speculates=self._settings.speculation,
                count_speculation=self._count_speculation,
            )
        except ServerError:
            return engine

    def _build_stack(self) -> "lazy.SpeechStack | None":
        try:
            synthesizer, voices = self._build_synthesizer()
            return lazy.SpeechStack(
                vad=lazy.SileroVad(self._model_path(VAD_MODEL)),
                smart_turn=lazy.SmartTurn(self._model_path(TURN_MODEL)),
                transcriber=self._build_transcriber(),
                synthesizer=synthesizer,
                noise_reduction=lazy.available_kinds(),
                voices=voices,
            )
        except ApiError as error:
            self.missing_reason = hide_folders(error.message)
            self._notice(f"Speech is not available: {error.operator_message}")
            return None

    def _model_path(self, model: str) -> Path:
        return catalogue.find(model).main_file(self._weights / model)

    def _build_transcriber(self) -> Transcriber:
        settings, model = self._settings, self._settings.stt
        if settings.stt_url is not None:
            key = self._secrets.get(settings.stt_key_env or "")
            server = lazy.TranscriptionServer(base_url=settings.stt_url, model=model, languages=settings.stt_languages, api_key=key)
            return lazy.OpenAITranscriber(server)
        if model.startswith("whisper"):
            return lazy.WhisperTranscriber(self._weights / model, name=model)
        return lazy.MoonshineTranscriber(self._weights / model, name=model)

    def _build_synthesizer(self) -> tuple[Synthesizer, tuple[str, ...]]:
        settings, voice_by_alias = self._settings, self._settings.voice_by_alias
        if settings.voice_url is not None:
            key = self._secrets.get(settings.voice_key_env or "")
            names = settings.voices or KNOWN_VOICES
            server = lazy.SpeechServer(
                base_url=settings.voice_url, model=settings.voice, voices=names, api_key=key, aliases=dict(voice_by_alias)
            )
            return lazy.OpenAISynthesizer(server), (*names, *voice_by_alias)
        # Built once for the names of its voices, which the aliases need, and then with the aliases.
        voices = self._build_voice_process({}).voices
        aliases = dict.fromkeys((name for name in KNOWN_VOICES if name not in voices), voices[0]) | dict(voice_by_alias)
        return self._build_voice_process(aliases), (*voices, *aliases)

    def _build_voice_process(self, aliases: Mapping[str, str]) -> Synthesizer:
        settings = self._settings
        folder = self._weights / settings.voice
        if settings.voice.startswith("kokoro"):
            return kokoro_synthesizer(folder, aliases=aliases, notice=self._notice)
        return piper_synthesizer((folder, *map(Path, settings.voice_folders)), aliases=aliases, notice=self._notice)


def _take_exception(task: "asyncio.Task[None]") -> None:
    """Take the exception of a task that nobody may wait for any more; the operator has had a notice."""
    if not task.cancelled():
        task.exception()


def _verify_weights(settings: SpeechSettings, weights: Path) -> None:
    for name in settings.catalogue_models:
        if paths := verify.altered_files(catalogue.find(name), weights / name):
            raise ServerError(
                f"The files of the model '{name}' are damaged: {paths[0]} is missing or has changed. Run `antiphon models pull {name}`.",
                code="weights_unavailable",
            )


def _required_modules(settings: SpeechSettings) -> Iterator[tuple[str, str]]:
    """Modules, each with the extra that has it."""
    for name in ("numpy", "onnxruntime", "soundfile", "soxr"):
        yield name, "speech"
    if settings.voice_url is None:
        yield "piper", "piper"
    if settings.stt_url is None and settings.stt.startswith("whisper"):
        yield "faster_whisper", "whisper"


def missing_modules(settings: SpeechSettings) -> list[str]:
    """The modules that the settings need and that are not installed; none is imported."""
    return installation.missing_modules(name for name, _extra in _required_modules(settings))


def packages_problem(settings: SpeechSettings) -> str | None:
    """What is not installed of what the settings need, and what installs it; None where all is."""
    if not (modules := missing_modules(settings)):
        return None
    extras = dict.fromkeys(extra for name, extra in _required_modules(settings) if name in modules)
    return f"these are not installed: {', '.join(modules)}. {install_hint(*extras)}"


def catalogue_problem(settings: SpeechSettings) -> str | None:
    """Why a model that the settings name can't do what they want from it; None where all can."""
    choices: tuple[tuple[str, str | None, ModelKind], ...] = (
        (settings.stt, settings.stt_url, "stt"),
        (settings.voice, settings.voice_url, "tts"),
    )
    try:
        for name, url, kind in choices:
            if url is None:
                catalogue.find(name, kind)
    except ServerError as error:
        return error.message
    return None


def missing_reason(settings: SpeechSettings, weights: Path) -> str | None:
    """Why there can be no speech, and what to do about it; None where there can."""
    if settings.enabled is False:
        return "`speech.enabled` is off."
    if problem := packages_problem(settings) or catalogue_problem(settings):
        return problem
    complete = {model.name for model in fetch.installed_models(weights) if model.is_complete}
    missing = [name for name in settings.catalogue_models if name not in complete]
    if missing:
        return f"these models are not here: {', '.join(missing)}. Run `antiphon models pull {' '.join(missing)}`."
    return None
