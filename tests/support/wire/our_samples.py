"""Samples of our own wire types, generated from their annotations."""

from collections.abc import Iterator, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, UnsetType

from antiphon.wire.codec.types import Nothing, Unknown, Wire
from antiphon.wire.realtime import items as realtime
from antiphon.wire.realtime.response import StatusDetails, StatusError
from antiphon.wire.realtime.server_events import Conversation, ConversationCreated
from antiphon.wire.responses.events import ErrorEvent, error_event
from antiphon.wire.responses.hosted_calls import ImageGenerationCall, LocalShellCallOutput
from antiphon.wire.responses.items import AdditionalTools, CompactionTrigger, ConfigurationUpdate, ItemReference, Message, Reasoning
from antiphon.wire.responses.parts import FileCitation, InputFile, InputImage, InputText, OutputText, ReasoningText, Refusal, SummaryText
from antiphon.wire.responses.request import ReasoningOptions
from antiphon.wire.responses.response import ResponseError
from antiphon.wire.responses.tools import FunctionTool

# What the annotations alone don't express, such as which parts the messages of a role can have
BY_HAND: dict[Any, tuple[Wire, ...]] = {
    Message: (
        Message(role="user", content="Hello"),
        Message(role="developer", content=[InputText(text="Be brief.")]),
        Message(role="user", content=[InputText(text="What is it?"), InputImage(file_id="file_1"), InputFile(file_id="file_2")]),
        Message(role="assistant", content="Hello", phase="commentary"),
        Message(
            id="msg_1",
            role="assistant",
            status="completed",
            content=[
                OutputText(text="A cat [1]", annotations=[FileCitation(file_id="file_2", filename="cats.txt", index=6)]),
                Refusal(refusal="No more."),
            ],
            phase="final_answer",
        ),
    ),
    Reasoning: (
        Reasoning(
            id="rs_1", summary=[SummaryText(text="Cats.")], content=[ReasoningText(text="Cats?")], encrypted_content="c", status="completed"
        ),
    ),
    AdditionalTools: (AdditionalTools(id="at_1", role="developer", tools=[FunctionTool(name="feed", parameters=None, strict=True)]),),
    LocalShellCallOutput: (LocalShellCallOutput(id="lsh_1", output="a.txt", call_id="call_1", status="completed"),),
    ReasoningOptions: (ReasoningOptions(context="auto", effort="low", mode="standard", summary="auto"),),
    ResponseError: (ResponseError(code="server_error", message="Gone.", param="input", type="server_error"),),
    realtime.MessageItem: (
        realtime.MessageItem(role="system", content=[]),
        realtime.MessageItem(role="system", content=[realtime.InputText(text="Be brief.")]),
        realtime.MessageItem(role="assistant", content=[realtime.OutputText(text="Hello"), realtime.OutputAudio(transcript="Hello")]),
        realtime.MessageItem(
            id="item_1",
            object="realtime.item",
            status="completed",
            role="user",
            content=[
                realtime.InputText(text="Hello"),
                realtime.InputAudio(audio=b"\x00\x01", transcript="Hello"),
                realtime.InputImage(image_url="data:image/png;base64,AAAA", detail="low"),
            ],
        ),
    ),
    realtime.InputMessage: (
        realtime.InputMessage(role="assistant", content=[realtime.OutputText(text="Hello")]),
        realtime.InputMessage(role="user", content=[realtime.InputText(text="Hello"), realtime.ItemReference(id="item_1")]),
    ),
    ConversationCreated: (ConversationCreated(event_id="event_1", conversation=Conversation(id="conv_1", object="realtime.conversation")),),
    StatusDetails: (
        StatusDetails(type="cancelled", reason="turn_detected"),
        StatusDetails(type="failed", error=StatusError(type="server_error", code="server_error", message="Gone.")),
    ),
    ErrorEvent: (error_event(3, message="Overloaded.", type="server_error", code="server_error"),),
}
# Items that no server puts into its output
ASKED_ONLY = (ConfigurationUpdate, ItemReference, CompactionTrigger)
# `conversation` excludes `previous_response_id`
LEFT_OUT = ("extra", "conversation")
PATTERNS = {"tunnel_": "tunnel_0123456789abcdef0123456789abcdef"}


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union that have samples."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [each for each in members if each not in (NoneType, UnsetType, Nothing, Unknown)]


REFERENCES = {ImageGenerationCall: ("result", "status")}
"""Fields that only a reference to an item may leave out, and that the original's types want."""


@cache
def samples(kind: type[Wire]) -> tuple[Wire, ...]:
    """Samples with only the required fields, with all fields, and with each other value of a single field."""
    if kind in BY_HAND:
        return BY_HAND[kind]
    hints = get_type_hints(kind, include_extras=True)
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in LEFT_OUT]
    choices = {field.name: list(_values(hints[field.name])) for field in fields}
    first = {name: values[0] for name, values in choices.items()}
    least = kind(**{field.name: first[field.name] for field in fields if field.required or field.name in REFERENCES.get(kind, ())})
    return least, kind(**first), *(kind(**first | {name: value}) for name, values in choices.items() for value in values[1:])


def _values(annotation: Any) -> Iterator[Any]:
    for each in alternatives(annotation):
        meta = Meta()
        if get_origin(each) is Annotated:
            each, meta = get_args(each)
        origin, args = get_origin(each), get_args(each)
        if each in ASKED_ONLY:
            continue
        if each in BY_HAND:
            yield BY_HAND[each][-1]
        elif isinstance(each, type) and issubclass(each, Wire):
            yield samples(each)[1]
        elif origin is Literal:
            yield from args
        elif origin in (list, Sequence):
            yield [value for member in alternatives(args[0]) for value in list(_values(member))[:1]][:20]
        elif origin is dict:
            yield {"key": next(_values(args[1]))}
        else:
            yield _plain(each, meta)


def _plain(kind: Any, meta: Meta) -> Any:
    if kind is str and meta.pattern:
        return next((text for start, text in PATTERNS.items() if start in meta.pattern), "name_1")
    return {str: "text", int: meta.ge or 1, float: max(0.5, meta.ge or 0), bool: True, bytes: b"\x00\x01\x02\xff"}.get(
        kind, {"any": [1.5, None]}
    )
