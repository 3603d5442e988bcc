"""
How responses, their events and their errors are written: each profile says how one flavour of the API differs from
another.

Source: the OpenAI API's streams; the Open Responses specification of 2026-04-24; EU GPT, "Streaming events" (public
preview). What was chosen where they disagree, and why: docs/decisions/0004 and 0036.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from msgspec import UNSET, Raw, UnsetType, json, structs

from antiphon.errors import ClientError
from antiphon.wire.codec.response_ids import with_uuids
from antiphon.wire.codec.stream_encoder import StreamEncoder
from antiphon.wire.codec.types import ENCODER, MARKER_BYTE, Extra, JsonDict, Tagged, Unknown, encode, strip_markers
from antiphon.wire.responses import items
from antiphon.wire.responses.events import (
    OPENING_EVENTS,
    TERMINAL_EVENTS,
    UNNUMBERED_EVENTS,
    ErrorEvent,
    OriginalEvent,
    OutputItemAdded,
    OutputItemDone,
    ResponseEvent,
    StreamEvent,
    decode_event,
)
from antiphon.wire.responses.response import Response, read_item, read_response
from antiphon.wire.responses.summary import SUMMARY_EVENT_TYPES, ResponseNotes, decode_notes
from antiphon.wire.responses.summary_stream import Summarizer, SummaryStream

ErrorShape = Literal["both", "flat", "nested"]


class ErrorCodes(NamedTuple):
    """
    Other names for the codes of errors: by code, else by type, else by HTTP status, else the last.

    An HTTP error then has a code and a message, and nothing else.
    """

    by_code: Mapping[str, str]
    by_type: Mapping[str, str]
    by_status: Mapping[int, str]
    other: str

    def find(self, code: str | None, type: str | None, status: int | None) -> str:
        """The name of an error."""
        return self.by_code.get(code or "") or self.by_status.get(status or 0) or self.by_type.get(type or "") or self.other


class Profile(NamedTuple):
    """
    A flavour of the API.

    Attributes:
        name: in the configuration, and of keys.
        base_path: what the paths of its routes begin with; that of `openai` serves the server's default or the key's.
        event_line: what the `event:` line of a server-sent event says: the event's `type`, or always `message`.
        done_marker: whether `data: [DONE]` ends a stream.
        event_names: other names for the `type` of some events.
        error_shape: where the `error` event has its details: in itself, in its `error`, or in both.
        error_codes: other names for the codes of errors.
        known_types: the types of events and of items that need no prefix; empty where none needs one.
        slug: the prefix of those that do.
        extra_events: which of the events that the original does not have are shown.
        only_types: which events are shown; empty for all.
        response_shape: whether responses are shown in full, or are summed up. What follows is about those summed up.
        milliseconds: whether times are in milliseconds.
        uuid_ids: whether responses' ids are UUIDs.
        bare_parts: whether parts have a text only, and their events no item's id.
        arguments_in_added: whether a call is added with its arguments, and so once they are known.
        calls_with_output: whether calls that the server has made are shown, as function calls with an output.
        websocket: whether it has a WebSocket mode.
    """

    name: str
    base_path: str = "/v1"
    event_line: Literal["type", "message"] = "type"
    done_marker: bool = False
    event_names: Mapping[str, str] = {}
    error_shape: ErrorShape = "both"
    error_codes: ErrorCodes | None = None
    known_types: frozenset[str] = frozenset()
    slug: str = ""
    extra_events: frozenset[str] = frozenset()
    only_types: frozenset[str] = frozenset()
    response_shape: Literal["full", "summary"] = "full"
    milliseconds: bool = False
    uuid_ids: bool = False
    bare_parts: bool = False
    arguments_in_added: bool = False
    calls_with_output: bool = False
    websocket: bool = True

    def error_code(self, code: str | None, type: str | None = None, status: int | None = None) -> str:
        """The code of an error, as this profile names it."""
        return code or "server_error" if self.error_codes is None else self.error_codes.find(code, type, status)


_OPEN_RESPONSES_EVENTS = """
created queued in_progress completed failed incomplete output_item.added output_item.done content_part.added
content_part.done output_text.delta output_text.done output_text.annotation.added refusal.delta refusal.done
function_call_arguments.delta function_call_arguments.done reasoning.delta reasoning.done reasoning_summary_part.added
reasoning_summary_part.done reasoning_summary_text.delta reasoning_summary_text.done
"""
_OPEN_RESPONSES_ITEMS = "message function_call function_call_output reasoning item_reference compaction"

_EUGPT_ERRORS = ErrorCodes(
    by_code={
        "model_not_found": "model_not_found",
        "context_length_exceeded": "context_length_exceeded",
        "rate_limit_exceeded": "rate_limit_exceeded",
        "insufficient_quota": "rate_limit_exceeded",
        "queue_full": "overloaded",
        "server_is_overloaded": "overloaded",
        "server_shutting_down": "overloaded",
        "store_unavailable": "overloaded",
        "worker_busy": "overloaded",
        "upstream_timeout": "upstream_timeout",
        "invalid_prompt": "invalid_request",
        "cancelled": "cancelled",
    },
    by_type={
        "invalid_request_error": "invalid_request",
        "rate_limit_error": "rate_limit_exceeded",
        "service_unavailable_error": "overloaded",
    },
    by_status={
        **dict.fromkeys((400, 405, 408, 409, 411, 413, 414, 415, 421, 422, 426, 431), "invalid_request"),
        401: "authentication_failed",
        403: "permission_denied",
        404: "not_found",
        410: "not_found",
        429: "rate_limit_exceeded",
        503: "overloaded",
        504: "upstream_timeout",
        529: "overloaded",
    },
    other="internal_error",
)

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("openai"),
        Profile(
            "open-responses",
            base_path="/openresponses/v1",
            done_marker=True,  # its text demands it of every stream; OpenAI's streams have none
            event_names={
                "response.reasoning_text.delta": "response.reasoning.delta",
                "response.reasoning_text.done": "response.reasoning.done",
            },
            error_shape="nested",
            # Open Responses: items and events that it does not know must begin with the name of who made them.
            known_types=frozenset(
                ("error", *(f"response.{name}" for name in _OPEN_RESPONSES_EVENTS.split()), *_OPEN_RESPONSES_ITEMS.split())
            ),
            slug="openai",
        ),
        Profile(
            "eugpt",
            base_path="/eugpt/v1",
            event_line="message",
            error_shape="flat",
            error_codes=_EUGPT_ERRORS,
            extra_events=frozenset(("response.routing.completed", "response.rewrite.in_progress")),
            only_types=SUMMARY_EVENT_TYPES,
            response_shape="summary",
            milliseconds=True,
            uuid_ids=True,
            bare_parts=True,
            arguments_in_added=True,
            calls_with_output=True,
            websocket=False,
        ),
    )
}

BASE_PATHS = {profile.base_path: profile for profile in PROFILES.values()}
"""The profiles by the base paths of their routes."""

_SHAPE_CHANGES: dict[ErrorShape, dict[str, UnsetType]] = {
    "both": {},
    "flat": {"error": UNSET},
    "nested": {"code": UNSET, "message": UNSET, "param": UNSET},
}

_ITEM_EVENTS = (OutputItemAdded, OutputItemDone, *OPENING_EVENTS, *TERMINAL_EVENTS)
"""Events with items in them."""


class EventEncoder:
    """
    Writes events in the form of a profile; build one for each profile.

    Args:
        profile: a row of `PROFILES`.

    Attributes:
        stream_end: what follows the last server-sent event of a stream.
        is_neutral: whether events are written as the journal of a background response has them.
        keeps_numbers: whether events have the numbers that their session gave them.
        is_stateless: whether an event is written alike whatever was written before it.
    """

    is_stateless = True

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.stream_end = b"data: [DONE]\n\n" if profile.done_marker else b""
        self.keeps_numbers = not (profile.only_types or profile.extra_events)
        self.is_neutral = self.keeps_numbers and not (profile.event_names or profile.known_types) and profile.error_shape == "both"
        self._summarizer = Summarizer(profile) if profile.response_shape == "summary" else None
        kinds = get_args(OriginalEvent)
        tags = [_tag(kind) for kind in kinds if kind is not Unknown]
        self._names = {tag: name for tag in tags if (name := self._name(tag)) != tag}
        unusual = {Unknown, ErrorEvent, *UNNUMBERED_EVENTS, *(_ITEM_EVENTS if profile.known_types else ())}
        self._sse_heads = {kind: self._sse_head(_tag(kind)) for kind in kinds if kind not in unusual and _tag(kind) not in self._names}

    def stream(self, after: int = -1) -> StreamEncoder[StreamEvent]:
        """
        What writes the events of one response, from its first.

        Args:
            after: the number of the last event that is not to be written, in a profile that numbers events itself.
        """
        return self if self._summarizer is None else _SummaryEncoder(self._summarizer, self._sse_head, self.stream_end, after)

    def encode_sse_into(self, events: Iterable[StreamEvent], buffer: bytearray) -> None:
        """Append `events` to `buffer`, each as one server-sent event."""
        for event in events:
            head = self._sse_heads.get(type(event))
            if head is None:
                self._encode_unusual_into(event, buffer)
                continue
            start = len(buffer)
            buffer += head
            ENCODER.encode_into(event, buffer, -1)
            # The byte marks unknown fields (`codec.types`), which few events have: the copy is rarely made.
            if buffer.find(MARKER_BYTE, start) != -1:
                buffer[start:] = strip_markers(bytes(buffer[start:]))
            buffer += b"\n\n"

    def encode_json(self, event: StreamEvent) -> bytes:
        """`event` as JSON, for one message of a WebSocket."""
        # An upstream's error may have only one of the two shapes, of which nothing can be left out.
        if isinstance(event, ErrorEvent) and event.error and event.message is not UNSET:
            event = structs.replace(event, **_SHAPE_CHANGES[self.profile.error_shape])
        content = encode(self._with_prefixes(event) if self.profile.known_types else event)
        if name := self._names.get(event.type):
            # Every event starts with its type.
            # Only the first: the same text may stand in the event's own content.
            content = content.replace(f'"type":"{event.type}"'.encode(), f'"type":"{name}"'.encode(), 1)
        return content

    # Responses and errors

    def encode_response(self, response: Response, notes: ResponseNotes | None = None) -> bytes:
        """A response that is not streamed, as JSON; `notes` are what only some profiles show."""
        if self._summarizer is not None:
            return encode(self._summarizer.whole(response, notes or ResponseNotes()))
        return encode(self._response_with_prefixes(response) if self.profile.known_types else response)

    def encode_body(self, body: bytes, notes: bytes | None = None) -> bytes:
        """The JSON of a stored response and its notes, as `encode_response` writes it."""
        if self.is_neutral:
            return body
        return self.encode_response(read_response(body), None if notes is None else decode_notes(notes))

    def response_id(self, response_id: str) -> str:
        """The id of a response."""
        return response_id if self._summarizer is None else self._summarizer.id(response_id)

    def encode_error(self, error: JsonDict, status: int) -> JsonDict:
        """The body of an HTTP error; `error` as the original writes it."""
        if self.profile.error_codes is None:
            return error
        detail = error["error"]
        message = with_uuids(detail["message"]) if self.profile.uuid_ids else detail["message"]
        return {"error": {"code": self.profile.error_code(detail["code"], detail["type"], status), "message": message}}

    # Types

    def _name(self, type: str) -> str:
        """What the profile calls a type of events or items."""
        name = self.profile.event_names.get(type, type)
        known_types = self.profile.known_types
        return f"{self.profile.slug}:{name}" if known_types and name not in known_types and ":" not in name else name

    def _with_prefixes(self, event: StreamEvent) -> StreamEvent:
        """The event, where the types of its items, or its own, are no types of the profile."""
        if isinstance(event, OutputItemAdded | OutputItemDone):
            return structs.replace(event, item=self._item_with_prefix(event.item))
        if isinstance(event, ResponseEvent):
            return structs.replace(event, response=self._response_with_prefixes(event.response))
        if isinstance(event, Unknown):
            return Unknown(extra=Extra({**event.extra, "type": self._name(event.type)}))
        return event

    def _response_with_prefixes(self, response: Response) -> Response:
        return structs.replace(response, output=[self._item_with_prefix(item) for item in response.output])

    def _item_with_prefix(self, item: items.Item) -> items.Item:
        name = self._name(item.type)
        return item if name == item.type else Unknown(extra=Extra({**_plain_item(item), "type": name}))

    def _sse_head(self, type: str) -> bytes:
        name = "message" if self.profile.event_line == "message" else " ".join(type.split())
        return f"event: {name}\ndata: ".encode()

    def _encode_unusual_into(self, event: StreamEvent, buffer: bytearray) -> None:
        if isinstance(event, UNNUMBERED_EVENTS):
            return  # a profile that shows them has a stream of its own
        buffer += b"%b%b\n\n" % (self._sse_head(self._name(event.type)), self.encode_json(event))


class JournalEncoder(EventEncoder):
    """
    Writes events as they are stored, for readers of any profile: as the original does, and those that it does not have as
    a comment before the next event, so that events can be counted, and a reader may leave them out.
    """

    def __init__(self) -> None:
        super().__init__(PROFILES["openai"])

    def _encode_unusual_into(self, event: StreamEvent, buffer: bytearray) -> None:
        if isinstance(event, UNNUMBERED_EVENTS):
            buffer += b": %b\n" % encode(event)
        else:
            super()._encode_unusual_into(event, buffer)


def read_journal(body: bytes) -> Iterator[StreamEvent]:
    """The events that `JournalEncoder` wrote."""
    for line in body.splitlines():
        # `event:` lines only repeat the type.
        if line.startswith((b"data: {", b": {")):
            yield _read_event(line[line.index(b"{") :])


_ANY_ITEM = Raw(b'{"type":"any"}')
"""Stands for an item while the rest of an event is read."""


def _read_event(body: bytes) -> StreamEvent:
    """A stored event; what of it can't be read is `Unknown`: see `read_response`."""
    for read in (decode_event, _read_with_items):
        try:
            return read(body)
        except ClientError:
            pass
    return Unknown(extra=Extra(json.decode(body, type=dict[str, Raw])))


def _read_with_items(body: bytes) -> StreamEvent:
    fields = json.decode(body, type=dict[str, Raw])
    if "response" in fields:
        response = read_response(bytes(fields["response"]))
        # The items are left out and put back: one that can't be read must not cost the whole event.
        without_items = Raw(encode(structs.replace(response, output=[])))
        event = decode_event(json.encode(fields | {"response": without_items}))
        return structs.replace(event, response=response) if isinstance(event, ResponseEvent) else event
    item = fields.get("item", _ANY_ITEM)
    event = decode_event(json.encode(fields | {"item": _ANY_ITEM}))
    return structs.replace(event, item=read_item(bytes(item))) if isinstance(event, OutputItemAdded | OutputItemDone) else event


class _SummaryEncoder:
    """Writes a stream whose responses are summed up."""

    is_stateless = False

    def __init__(self, rules: Summarizer, sse_head: Callable[[str], bytes], stream_end: bytes, after: int) -> None:
        self.stream_end = stream_end
        self._stream = SummaryStream(rules.rules)
        self._sse_head = sse_head
        self._after = after

    def encode_sse_into(self, events: Iterable[StreamEvent], buffer: bytearray) -> None:
        for event in events:
            for each in self._stream.translate(event):
                if each.sequence_number > self._after:
                    buffer += b"%b%b\n\n" % (self._sse_head(each.type), encode(each))


def _tag(kind: type[Tagged]) -> str:
    return str(kind.__struct_config__.tag)


def _plain_item(item: items.Item) -> JsonDict:
    fields: JsonDict = json.decode(encode(item))
    return fields


_PREFIXED_TYPE = re.compile(rb'"type"(\s*):(\s*)"(?:' + "|".join(filter(None, {each.slug for each in PROFILES.values()})).encode() + rb"):")


def without_prefixes(body: bytes) -> bytes:
    """JSON with the types of the original's items and events where Open Responses' clients and servers prefix them."""
    # A quote within a text is escaped, so no text has such a member.
    return _PREFIXED_TYPE.sub(rb'"type"\1:\2"', body) if b'"openai:' in body else body


ENCODERS = {profile.name: EventEncoder(profile) for profile in PROFILES.values()}
"""The encoder of each profile."""


def encoder_for_path(path: str) -> EventEncoder | None:
    """The encoder of the profile whose base path it is; None for any other path."""
    profiles = (profile for base_path, profile in BASE_PATHS.items() if base_path != "/v1" and path.startswith(f"{base_path}/"))
    return next((ENCODERS[profile.name] for profile in profiles), None)
