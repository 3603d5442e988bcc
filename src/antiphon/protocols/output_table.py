"""The output of a response as a table: which events end one kind of content and begin the next."""

from enum import Enum, StrEnum
from typing import Literal

Status = Literal["in_progress", "completed", "incomplete"]


Outcome = Literal["completed", "incomplete", "failed", "cancelled"]


class OutputKind(StrEnum):
    """What is open in the output; `REASONING_ITEM` is a reasoning item between two parts."""

    NONE = "nothing"
    TEXT = "text"
    AUDIO = "sound"
    REFUSAL = "refusal"
    REASONING_TEXT = "thinking"
    REASONING_SUMMARY = "summary"
    REASONING_ITEM = "thought"
    TOOL_CALL = "call"
    HOSTED_TOOL = "hosted"


class OutputAction(Enum):
    """One elementary change to what is open."""

    END_PART = "end part"
    END_ITEM = "end item"
    BEGIN_ITEM = "item"
    BEGIN_PART = "part"


_EP, _EI, _I, _P = OutputAction.END_PART, OutputAction.END_ITEM, OutputAction.BEGIN_ITEM, OutputAction.BEGIN_PART

OUTPUT_TRANSITIONS: dict[OutputKind, dict[OutputKind, tuple[OutputAction, ...]]] = {
    OutputKind.NONE: {
        OutputKind.NONE: (),
        OutputKind.TEXT: (_I, _P),
        OutputKind.AUDIO: (_I, _P),
        OutputKind.REFUSAL: (_I, _P),
        OutputKind.REASONING_TEXT: (_I, _P),
        OutputKind.REASONING_SUMMARY: (_I, _P),
        OutputKind.REASONING_ITEM: (_I,),
        OutputKind.TOOL_CALL: (_I,),
        OutputKind.HOSTED_TOOL: (_I,),
    },
    # Text, audio and refusals are parts of one message.
    OutputKind.TEXT: {
        OutputKind.NONE: (_EP, _EI),
        OutputKind.TEXT: (),
        OutputKind.AUDIO: (_EP, _P),
        OutputKind.REFUSAL: (_EP, _P),
        OutputKind.REASONING_TEXT: (_EP, _EI, _I, _P),
        OutputKind.REASONING_SUMMARY: (_EP, _EI, _I, _P),
        OutputKind.REASONING_ITEM: (_EP, _EI, _I),
        OutputKind.TOOL_CALL: (_EP, _EI, _I),
        OutputKind.HOSTED_TOOL: (_EP, _EI, _I),
    },
    OutputKind.AUDIO: {
        OutputKind.NONE: (_EP, _EI),
        OutputKind.TEXT: (_EP, _P),
        OutputKind.AUDIO: (),
        OutputKind.REFUSAL: (_EP, _P),
        OutputKind.REASONING_TEXT: (_EP, _EI, _I, _P),
        OutputKind.REASONING_SUMMARY: (_EP, _EI, _I, _P),
        OutputKind.REASONING_ITEM: (_EP, _EI, _I),
        OutputKind.TOOL_CALL: (_EP, _EI, _I),
        OutputKind.HOSTED_TOOL: (_EP, _EI, _I),
    },
    OutputKind.REFUSAL: {
        OutputKind.NONE: (_EP, _EI),
        OutputKind.TEXT: (_EP, _P),
        OutputKind.AUDIO: (_EP, _P),
        OutputKind.REFUSAL: (),
        OutputKind.REASONING_TEXT: (_EP, _EI, _I, _P),
        OutputKind.REASONING_SUMMARY: (_EP, _EI, _I, _P),
        OutputKind.REASONING_ITEM: (_EP, _EI, _I),
        OutputKind.TOOL_CALL: (_EP, _EI, _I),
        OutputKind.HOSTED_TOOL: (_EP, _EI, _I),
    },
    # Reasoning text and its summary are parts of one reasoning item.
    OutputKind.REASONING_TEXT: {
        OutputKind.NONE: (_EP, _EI),
        OutputKind.TEXT: (_EP, _EI, _I, _P),
        OutputKind.AUDIO: (_EP, _EI, _I, _P),
        OutputKind.REFUSAL: (_EP, _EI, _I, _P),
        OutputKind.REASONING_TEXT: (),
        OutputKind.REASONING_SUMMARY: (_EP, _P),
        OutputKind.REASONING_ITEM: (_EP,),
        OutputKind.TOOL_CALL: (_EP, _EI, _I),
        OutputKind.HOSTED_TOOL: (_EP, _EI, _I),
    },
    OutputKind.REASONING_SUMMARY: {
        OutputKind.NONE: (_EP, _EI),
        OutputKind.TEXT: (_EP, _EI, _I, _P),
        OutputKind.AUDIO: (_EP, _EI, _I, _P),
        OutputKind.REFUSAL: (_EP, _EI, _I, _P),
        OutputKind.REASONING_TEXT: (_EP, _P),
        OutputKind.REASONING_SUMMARY: (),
        OutputKind.REASONING_ITEM: (_EP,),
        OutputKind.TOOL_CALL: (_EP, _EI, _I),
        OutputKind.HOSTED_TOOL: (_EP, _EI, _I),
    },
    OutputKind.REASONING_ITEM: {
        OutputKind.NONE: (_EI,),
        OutputKind.TEXT: (_EI, _I, _P),
        OutputKind.AUDIO: (_EI, _I, _P),
        OutputKind.REFUSAL: (_EI, _I, _P),
        OutputKind.REASONING_TEXT: (_P,),
        OutputKind.REASONING_SUMMARY: (_P,),
        OutputKind.REASONING_ITEM: (),
        OutputKind.TOOL_CALL: (_EI, _I),
        OutputKind.HOSTED_TOOL: (_EI, _I),
    },
    # Calls have no parts; each is an item.
    OutputKind.TOOL_CALL: {
        OutputKind.NONE: (_EI,),
        OutputKind.TEXT: (_EI, _I, _P),
        OutputKind.AUDIO: (_EI, _I, _P),
        OutputKind.REFUSAL: (_EI, _I, _P),
        OutputKind.REASONING_TEXT: (_EI, _I, _P),
        OutputKind.REASONING_SUMMARY: (_EI, _I, _P),
        OutputKind.REASONING_ITEM: (_EI, _I),
        OutputKind.TOOL_CALL: (_EI, _I),
        OutputKind.HOSTED_TOOL: (_EI, _I),
    },
    OutputKind.HOSTED_TOOL: {
        OutputKind.NONE: (_EI,),
        OutputKind.TEXT: (_EI, _I, _P),
        OutputKind.AUDIO: (_EI, _I, _P),
        OutputKind.REFUSAL: (_EI, _I, _P),
        OutputKind.REASONING_TEXT: (_EI, _I, _P),
        OutputKind.REASONING_SUMMARY: (_EI, _I, _P),
        OutputKind.REASONING_ITEM: (_EI, _I),
        OutputKind.TOOL_CALL: (_EI, _I),
        OutputKind.HOSTED_TOOL: (_EI, _I),
    },
}


ITEM_ID_PREFIXES = {
    OutputKind.TEXT: "msg",
    OutputKind.AUDIO: "msg",
    OutputKind.REFUSAL: "msg",
    OutputKind.REASONING_TEXT: "rs",
    OutputKind.REASONING_SUMMARY: "rs",
    OutputKind.REASONING_ITEM: "rs",
    OutputKind.TOOL_CALL: "fc",
    OutputKind.HOSTED_TOOL: "item",
}
