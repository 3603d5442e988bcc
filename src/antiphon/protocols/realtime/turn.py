"""
Whose turn it is, as far as the person is concerned: silent, or speaking. `MOVES` is the whole law.

Speech is open exactly while a turn is; what an engine says of speech out of turn is nothing.
"""

from enum import Enum, StrEnum

from msgspec import Struct


class Floor(StrEnum):
    """What the person does."""

    SILENT = "silent"
    SPEAKING = "speaking"


class Sign(Enum):
    """What has happened to the person's turn."""

    STARTED = "started"
    STOPPED = "stopped"
    COMMITTED = "committed"
    DROPPED = "dropped"
    UNWATCHED = "unwatched"


class Step(Enum):
    """What follows for the client."""

    TELL_START = "tell start"
    TELL_STOP = "tell stop"
    COMMIT = "commit"


_NONE: tuple[Step, ...] = ()

MOVES: dict[Floor, dict[Sign, tuple[Floor, tuple[Step, ...]]]] = {
    Floor.SILENT: {
        Sign.STARTED: (Floor.SPEAKING, (Step.TELL_START,)),
        Sign.STOPPED: (Floor.SILENT, _NONE),
        Sign.COMMITTED: (Floor.SILENT, (Step.COMMIT,)),
        Sign.DROPPED: (Floor.SILENT, _NONE),
        Sign.UNWATCHED: (Floor.SILENT, _NONE),
    },
    Floor.SPEAKING: {
        Sign.STARTED: (Floor.SPEAKING, _NONE),
        Sign.STOPPED: (Floor.SILENT, (Step.TELL_STOP, Step.COMMIT)),
        # Committed by hand in the middle of speech: the turn ends here, and all that was said of it holds.
        Sign.COMMITTED: (Floor.SILENT, (Step.TELL_STOP, Step.COMMIT)),
        Sign.DROPPED: (Floor.SILENT, (Step.TELL_STOP,)),
        # Nobody listens for its end any more; the sound stays in the buffer, for the client to commit.
        Sign.UNWATCHED: (Floor.SILENT, (Step.TELL_STOP,)),
    },
}


class Turn(Struct):
    """
    The person's turn that is open, or the next.

    Attributes:
        id: what the engine calls it; "" while none is open.
        item_id: what its item will be called.
        start_ms: where it starts on the conversation's clock.
    """

    floor: Floor = Floor.SILENT
    id: str = ""
    item_id: str = ""
    start_ms: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the person is speaking."""
        return self.floor is Floor.SPEAKING

    def take(self, sign: Sign) -> tuple[Step, ...]:
        """What follows from `sign`."""
        self.floor, steps = MOVES[self.floor][sign]
        return steps
