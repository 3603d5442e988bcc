"""The speech components that all conversations of a process share."""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.speech.base import Synthesizer, Transcriber
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

    async def start(self) -> None:
        """
        Load or connect all components; once.

        Raises:
            ApiError: a component needs something that is missing; the message says how to get it.
        """
        for part in (self.vad, self.smart_turn, self.transcriber, self.synthesizer):
            if part is not None:
                await part.start()

    async def stop(self) -> None:
        """Release everything; idempotent."""
        for part in (self.transcriber, self.synthesizer, self.smart_turn):
            if part is not None:
                await part.stop()
        if self.vad is not None:
            self.vad.stop()
