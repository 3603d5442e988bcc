"""The parts of speech that all conversations of a process share."""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.speech.base import Ear, Mouth
from antiphon.speech.turn_detection.smart_turn import SmartTurn
from antiphon.speech.turn_detection.vad import SileroVad


class SpeechStack(Struct, frozen=True, kw_only=True):
    """
    What there is to hear and to speak with.

    Attributes:
        activity: tells when someone speaks; None where turns are committed by hand only.
        smart_turn: tells how complete a turn sounds; None where only silence ends one.
        ear: None where nobody listens.
        mouth: None where nobody speaks.
        noise_reduction: the kinds that there is something against.
        voices: the names that the mouth's voices go by, its own choice first.
    """

    vad: SileroVad | None = None
    smart_turn: SmartTurn | None = None
    transcriber: Ear | None = None
    synthesizer: Mouth | None = None
    noise_reduction: Sequence[str] = ()
    voices: tuple[str, ...] = ()

    async def start(self) -> None:
        """
        Load or connect all of them; once.

        Raises:
            ApiError: what one of them needs is missing, with how to get it.
        """
        for part in (self.vad, self.smart_turn, self.transcriber, self.synthesizer):
            if part is not None:
                await part.start()

    async def stop(self) -> None:
        """Let go of everything; idempotent."""
        for part in (self.transcriber, self.synthesizer, self.smart_turn):
            if part is not None:
                await part.stop()
        if self.vad is not None:
            self.vad.stop()
