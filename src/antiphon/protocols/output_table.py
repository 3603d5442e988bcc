"""The output of a response as a table: which events end one kind of content and begin the next."""

from enum import Enum, StrEnum
from typing import Literal

Status = Literal["in_progress", "completed", "incomplete"]


Outcome = Literal["completed", "incomplete", "failed", "cancelled"]


class Slot(StrEnum):
    """
    What is open: nothing, a part of a message (in writing, or aloud) or of a reasoning item, a reasoning item between parts, a call, a
    hosted tool's item.
    """

    NOTHING = "nothing"
    TEXT = "text"
    SOUND = "sound"
    REFUSAL = "refusal"
    THINKING = "thinking"
    SUMMARY = "summary"
    THOUGHT = "thought"
    CALL = "call"
    HOSTED = "hosted"


class Move(Enum):
    """One elementary change to what is open."""

    END_PART = "end part"
    END_ITEM = "end item"
    ITEM = "item"
    PART = "part"


_EP, _EI, _I, _P = Move.END_PART, Move.END_ITEM, Move.ITEM, Move.PART

MOVES: dict[Slot, dict[Slot, tuple[Move, ...]]] = {
    Slot.NOTHING: {
        Slot.NOTHING: (),
        Slot.TEXT: (_I, _P),
        Slot.SOUND: (_I, _P),
        Slot.REFUSAL: (_I, _P),
        Slot.THINKING: (_I, _P),
        Slot.SUMMARY: (_I, _P),
        Slot.THOUGHT: (_I,),
        Slot.CALL: (_I,),
        Slot.HOSTED: (_I,),
    },
    Slot.TEXT: {
        Slot.NOTHING: (_EP, _EI),
        Slot.TEXT: (),
        Slot.SOUND: (_EP, _P),
        Slot.REFUSAL: (_EP, _P),
        Slot.THINKING: (_EP, _EI, _I, _P),
        Slot.SUMMARY: (_EP, _EI, _I, _P),
        Slot.THOUGHT: (_EP, _EI, _I),
        Slot.CALL: (_EP, _EI, _I),
        Slot.HOSTED: (_EP, _EI, _I),
    },
    Slot.SOUND: {
        Slot.NOTHING: (_EP, _EI),
        Slot.TEXT: (_EP, _P),
        Slot.SOUND: (),
        Slot.REFUSAL: (_EP, _P),
        Slot.THINKING: (_EP, _EI, _I, _P),
        Slot.SUMMARY: (_EP, _EI, _I, _P),
        Slot.THOUGHT: (_EP, _EI, _I),
        Slot.CALL: (_EP, _EI, _I),
        Slot.HOSTED: (_EP, _EI, _I),
    },
    Slot.REFUSAL: {
        Slot.NOTHING: (_EP, _EI),
        Slot.TEXT: (_EP, _P),
        Slot.SOUND: (_EP, _P),
        Slot.REFUSAL: (),
        Slot.THINKING: (_EP, _EI, _I, _P),
        Slot.SUMMARY: (_EP, _EI, _I, _P),
        Slot.THOUGHT: (_EP, _EI, _I),
        Slot.CALL: (_EP, _EI, _I),
        Slot.HOSTED: (_EP, _EI, _I),
    },
    Slot.THINKING: {
        Slot.NOTHING: (_EP, _EI),
        Slot.TEXT: (_EP, _EI, _I, _P),
        Slot.SOUND: (_EP, _EI, _I, _P),
        Slot.REFUSAL: (_EP, _EI, _I, _P),
        Slot.THINKING: (),
        Slot.SUMMARY: (_EP, _P),
        Slot.THOUGHT: (_EP,),
        Slot.CALL: (_EP, _EI, _I),
        Slot.HOSTED: (_EP, _EI, _I),
    },
    Slot.SUMMARY: {
        Slot.NOTHING: (_EP, _EI),
        Slot.TEXT: (_EP, _EI, _I, _P),
        Slot.SOUND: (_EP, _EI, _I, _P),
        Slot.REFUSAL: (_EP, _EI, _I, _P),
        Slot.THINKING: (_EP, _P),
        Slot.SUMMARY: (),
        Slot.THOUGHT: (_EP,),
        Slot.CALL: (_EP, _EI, _I),
        Slot.HOSTED: (_EP, _EI, _I),
    },
    Slot.THOUGHT: {
        Slot.NOTHING: (_EI,),
        Slot.TEXT: (_EI, _I, _P),
        Slot.SOUND: (_EI, _I, _P),
        Slot.REFUSAL: (_EI, _I, _P),
        Slot.THINKING: (_P,),
        Slot.SUMMARY: (_P,),
        Slot.THOUGHT: (),
        Slot.CALL: (_EI, _I),
        Slot.HOSTED: (_EI, _I),
    },
    Slot.CALL: {
        Slot.NOTHING: (_EI,),
        Slot.TEXT: (_EI, _I, _P),
        Slot.SOUND: (_EI, _I, _P),
        Slot.REFUSAL: (_EI, _I, _P),
        Slot.THINKING: (_EI, _I, _P),
        Slot.SUMMARY: (_EI, _I, _P),
        Slot.THOUGHT: (_EI, _I),
        Slot.CALL: (_EI, _I),
        Slot.HOSTED: (_EI, _I),
    },
    Slot.HOSTED: {
        Slot.NOTHING: (_EI,),
        Slot.TEXT: (_EI, _I, _P),
        Slot.SOUND: (_EI, _I, _P),
        Slot.REFUSAL: (_EI, _I, _P),
        Slot.THINKING: (_EI, _I, _P),
        Slot.SUMMARY: (_EI, _I, _P),
        Slot.THOUGHT: (_EI, _I),
        Slot.CALL: (_EI, _I),
        Slot.HOSTED: (_EI, _I),
    },
}


ITEM_PREFIX = {
    Slot.TEXT: "msg",
    Slot.SOUND: "msg",
    Slot.REFUSAL: "msg",
    Slot.THINKING: "rs",
    Slot.SUMMARY: "rs",
    Slot.THOUGHT: "rs",
    Slot.CALL: "fc",
    Slot.HOSTED: "item",
}
