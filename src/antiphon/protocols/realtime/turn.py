"""
The user's turn: silent or speaking. `TURN_TRANSITIONS` is the whole law.

Speech is open exactly while a turn is; engine events about any other speech are ignored.
"""

from enum import Enum, StrEnum

from msgspec import Struct


class TurnState(StrEnum):
    """What the user does."""

    SILENT = "silent"
    SPEAKING = "speaking"


class TurnEvent(Enum):
    """What happened to the user's turn."""

    SPEECH_STARTED = "started"
    SPEECH_STOPPED = "stopped"
    AUDIO_COMMITTED = "committed"
    AUDIO_CLEARED = "dropped"
    DETECTION_DISABLED = "unwatched"


class TurnAction(Enum):
    """What follows from it."""

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
        # Realtime: a commit is allowed while turns are detected.
        # The client committed in the middle of speech: the turn ends here, with the ids that it was announced under.
        TurnEvent.AUDIO_COMMITTED: (TurnState.SILENT, (TurnAction.SEND_SPEECH_STOPPED, TurnAction.COMMIT_TURN)),
        TurnEvent.AUDIO_CLEARED: (TurnState.SILENT, (TurnAction.SEND_SPEECH_STOPPED,)),
        # Its end can't be detected any more; the audio stays in the buffer, for the client to commit.
        TurnEvent.DETECTION_DISABLED: (TurnState.SILENT, (TurnAction.SEND_SPEECH_STOPPED,)),
    },
}


class SpeechTurn(Struct):
    """
    The user's open turn, or the next one.

    Attributes:
        id: the engine's id for it; "" before the first.
        item_id: the id that its item will have.
        start_ms: where it starts, in all audio received so far.
    """

    state: TurnState = TurnState.SILENT
    id: str = ""
    item_id: str = ""
    start_ms: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the user is speaking."""
        return self.state is TurnState.SPEAKING

    def apply(self, event: TurnEvent) -> tuple[TurnAction, ...]:
        """The actions that follow from `event`."""
        self.state, actions = TURN_TRANSITIONS[self.state][event]
        return actions
