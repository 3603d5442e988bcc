"""
Whose turn it is, as far as the person is concerned: silent, or speaking. `MOVES` is the whole law.

Speech is open exactly while a turn is; what an engine says of speech out of turn is nothing.
"""

from enum import Enum, StrEnum

from msgspec import Struct


class TurnState(StrEnum):
    """What the person does."""

    SILENT = "silent"
    SPEAKING = "speaking"


class TurnEvent(Enum):
    """What has happened to the person's turn."""

    SPEECH_STARTED = "started"
    SPEECH_STOPPED = "stopped"
    AUDIO_COMMITTED = "committed"
    AUDIO_CLEARED = "dropped"
    DETECTION_DISABLED = "unwatched"


class TurnAction(Enum):
    """What follows for the client."""

    SEND_SPEECH_STARTED = "tell start"
    SEND_SPEECH_STOPPED = "tell stop"
    COMMIT_TURN = "commit"


_NO_ACTIONS: tuple[TurnAction, ...] = ()

TURN_TRANSITIONS: dict[TurnState, dict[TurnEvent, tuple[TurnState, tuple[TurnAction, ...]]]] = {
    TurnState.SILENT: {
        TurnEvent.SPEECH_STARTED: (TurnState.SPEAKING, (TurnAction.SEND_SPEECH_STARTED,)),
        TurnEvent.SPEECH_STOPPED: (TurnState.SILENT, _NO_ACTIONS),
        TurnEvent.AUDIO_COMMITTED: (TurnState.SILENT, (TurnAction.COMMIT_TURN,)),
        TurnEvent.AUDIO_CLEARED: (TurnState.SILENT, _NO_ACTIONS),
        TurnEvent.DETECTION_DISABLED: (TurnState.SILENT, _NO_ACTIONS),
    },
    TurnState.SPEAKING: {
        TurnEvent.SPEECH_STARTED: (TurnState.SPEAKING, _NO_ACTIONS),
        TurnEvent.SPEECH_STOPPED: (TurnState.SILENT, (TurnAction.SEND_SPEECH_STOPPED, TurnAction.COMMIT_TURN)),
        # Committed by hand in the middle of speech: the turn ends here, and all that was said of it holds.
        TurnEvent.AUDIO_COMMITTED: (TurnState.SILENT, (TurnAction.SEND_SPEECH_STOPPED, TurnAction.COMMIT_TURN)),
        TurnEvent.AUDIO_CLEARED: (TurnState.SILENT, (TurnAction.SEND_SPEECH_STOPPED,)),
        # Nobody listens for its end any more; the sound stays in the buffer, for the client to commit.
        TurnEvent.DETECTION_DISABLED: (TurnState.SILENT, (TurnAction.SEND_SPEECH_STOPPED,)),
    },
}


class SpeechTurn(Struct):
    """
    The person's turn that is open, or the next.

    Attributes:
        id: what the engine calls it; "" while none is open.
        item_id: what its item will be called.
        start_ms: where it starts on the conversation's clock.
    """

    state: TurnState = TurnState.SILENT
    id: str = ""
    item_id: str = ""
    start_ms: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the person is speaking."""
        return self.state is TurnState.SPEAKING

    def apply(self, event: TurnEvent) -> tuple[TurnAction, ...]:
        """What follows from `sign`."""
        self.state, steps = TURN_TRANSITIONS[self.state][event]
        return steps
