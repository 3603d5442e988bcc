"""The speech components that all conversations of a process share."""

from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from antiphon.engine_api.options import Transcription
from antiphon.errors import ServerError
from antiphon.speech.base import Synthesizer, Transcriber, TranscriptChunk
from antiphon.speech.stt.long_form import transcribe_long
from antiphon.speech.turn_detection.smart_turn import SmartTurn
from antiphon.speech.turn_detection.vad import SileroVad


class SpeechStack(Struct, frozen=True, kw_only=True):
    """
    The components to listen and speak with.

    Attributes:
        vad: detects speech; None if turns are only committed by the client.
        smart_turn: judges whether a turn sounds complete; None if only silence ends one.
        transcriber: None for no speech input.
        synthesizer: None for no speech output.
        noise_reduction: the kinds of noise reduction available.
        voices: names of the synthesizer's voices, the default first.
    """

    vad: SileroVad | None = None
    smart_turn: SmartTurn | None = None
    transcriber: Transcriber | None = None
    synthesizer: Synthesizer | None = None
    noise_reduction: Sequence[str] = ()
    voices: tuple[str, ...] = ()

    def transcribe_long(self, audio: AsyncIterator[bytes], options: Transcription) -> AsyncIterator[TranscriptChunk]:
        """
        The transcript of a recording, as `antiphon.speech.stt.long_form` makes it.

        Raises:
            ApiError: there is no transcriber, or it doesn't support an option.
        """
        if self.transcriber is None:
            raise ServerError("This server has no speech recognition.", status=501, code="speech_not_available")
        self.transcriber.check_options(options)
        return transcribe_long(self.transcriber, audio, options)

    @property
    def parts(self) -> "tuple[Synthesizer | Transcriber | SmartTurn | SileroVad, ...]":
        """Those there are; the voice is the first, as it takes longer to load than all others together."""
        parts = (self.synthesizer, self.transcriber, self.smart_turn, self.vad)
        return tuple(part for part in parts if part is not None)

    async def stop(self) -> None:
        """Release everything; idempotent."""
        for part in (self.transcriber, self.synthesizer, self.smart_turn):
            if part is not None:
                await part.stop()
        if self.vad is not None:
            self.vad.stop()
