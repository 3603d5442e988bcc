"""
A streamed response, in the engine's words.

A server says most things more than once: as deltas, as the whole of a part, as the whole of an item, and at the end as the whole output.
What was said is counted, so that whichever of these a server sends, or leaves out, each thing is heard once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from antiphon.engine_api import events as talk_events, history as turns
from antiphon.engine_api.options import Tool
from antiphon.engines.chat.response import count, likely
from antiphon.engines.responses.item_order import Items, Kind, UpstreamItem
from antiphon.engines.upstream.faults import refused, said_midway
from antiphon.errors import Fault, UpstreamTrouble
from antiphon.wire.codec.repair import mended
from antiphon.wire.upstream import responses as loose
from antiphon.wire.upstream.chat_completions import TokenLogprob
from antiphon.wire.upstream.responses import Event

Words = list[talk_events.FromEngine]

KINDS: dict[str, Kind] = {"message": "message", "reasoning": "reasoning", "function_call": "call", "custom_tool_call": "call"}
"""What each type of item is to us; all others are a hosted tool's."""

STATUSES = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
    "response.done": "completed",
}
"""Events that end an answer, and the status that they mean where their response names none."""

REASONS: dict[str | None, talk_events.EndReason] = {"content_filter": "content_filter"}
"""Why an answer is incomplete, where it is not some limit (`max_output_tokens`, `length`, `max_iterations_exceeded`)."""

ERROR_STATUSES = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "slow_down": 503,
    "server_is_overloaded": 503,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
}
"""The HTTP status that an error in a stream would have had before it; codes that begin with `invalid_` mean a 400 too."""


class ResponsesReading:
    """
    The reading of one answer.

    Args:
        id: of the response.
        offered: the tools by the names that the server was given.
        keeps_ids: whether items are called here as they are upstream.
    """

    def __init__(self, id: str, offered: Mapping[str, Tool], keeps_ids: bool) -> None:
        self._id = id
        self._offered = offered
        self._items = Items(id, keeps_ids)
        self._call_ids: set[str] = set()

    def read(self, events: list[bytes], words: Words) -> bool:
        """Add what `events` say; whether the answer is over."""
        id = self._id
        items = self._items
        decode = loose.decode_event
        for written in events:
            if not written or written == loose.DONE:
                continue
            try:
                event = decode(written)
            except (ValueError, RecursionError) as error:
                written, event = mended(written, decode, error, "event")
            speaking = items.speaking
            # Nearly every event is a piece of text and nothing else.
            if (
                speaking is not None
                and event.type == "response.output_text.delta"
                and event.item_id == speaking.given_id
                and event.output_index == speaking.index
                and event.content_index == speaking.part.index
                and not event.logprobs
                and type(event.delta) is str
            ):
                speaking.part.chars += len(event.delta)
                words.append(talk_events.Text(id, event.delta))
                continue
            if self._read_slowly(event, written, words):
                return True
        return False

    def finish(self, words: Words) -> bool:
        """Nothing more comes: never an end, as an answer that is whole says so."""
        return False

    def _read_slowly(self, event: Event, written: bytes, words: Words) -> bool:
        if (read := _READS.get(event.type)) is not None:
            read(self, event, words)
        elif event.type in STATUSES:
            self._end(event.response, STATUSES[event.type], words)
            return True
        elif not event.type and event.object == "response":
            self._end(msgspec.Raw(written), "completed", words)
            return True
        elif event.type in ("error", "response.error") or (not event.type and event.error is not None):
            raise failure(event.error if event.error is not None else _flat(event))
        elif event.type not in SKIPPED and (item := self._items.hosted(event)) is not None and not item.is_done:
            moved = loose.decode_fields(written) | {"type": ALIASES.get(event.type, event.type)}
            self._items.say(item, talk_events.HostedMoved(self._id, moved), words)
        return False

    # Text

    def _grow(self, kind: Kind, channel: str, event: Event, text: Any, words: Words, *, is_all: bool = False) -> None:
        """More of a text; with `is_all` the whole of it, of which most has been said."""
        item = self._items.find(event, kind, is_late=is_all)
        if item.is_done or not isinstance(text, str):
            return
        index = event.summary_index if channel == "summary" else event.content_index
        tokens = tuple(likely(token) for token in event.logprobs or ())
        if is_all:
            self._complete(item, channel, index, text, tokens, words)
        else:
            self._add(item, channel, index, text, tokens, words)
        item.is_settled = is_all

    def _complete(
        self, item: UpstreamItem, channel: str, index: int | None, text: str, tokens: tuple[talk_events.TokenLogprob, ...], words: Words
    ) -> None:
        """Say what is still missing of a text."""
        said = item.part_of(channel, index).chars
        if len(text) > said:
            self._add(item, channel, index, text[said:], () if said else tokens, words)

    def _add(
        self, item: UpstreamItem, channel: str, index: int | None, text: str, tokens: tuple[talk_events.TokenLogprob, ...], words: Words
    ) -> None:
        part = item.part_of(channel, index)
        part.chars += len(text)
        if channel == "text":
            item.part = part
        if channel == "summary":
            if item.summary_index not in (None, index or 0):
                self._items.say(item, talk_events.ReasoningBreak(self._id), words)
            item.summary_index = index or 0
        if text or tokens:
            self._items.say(item, _WORDS[channel](self._id, text, tokens), words)

    def _cite(self, event: Event, words: Words) -> None:
        item = self._items.find(event, "message", is_late=True)
        if isinstance(event.annotation, dict) and not item.is_done:
            item.part_of("text", event.content_index).annotations += 1
            self._items.say(item, talk_events.Annotated(self._id, event.annotation), words)

    def _part_done(self, event: Event, words: Words) -> None:
        part = event.part if isinstance(event.part, dict) else {}
        kind: Kind = "reasoning" if part.get("type") == "reasoning_text" else "message"
        item = self._items.find(event, kind, is_late=True)
        if part.get("type") in _CHANNELS and not item.is_done:
            self._whole_part(item, event.content_index or 0, part, words)
            item.is_settled = True

    def _summary_done(self, event: Event, words: Words) -> None:
        item = self._items.find(event, "reasoning", is_late=True)
        if isinstance(event.part, dict):
            self._grow("reasoning", "summary", event, event.part.get("text"), words, is_all=True)
        if item.summary_index is not None and not item.is_done:
            self._items.say(item, talk_events.ReasoningBreak(self._id), words)
            item.summary_index = None

    def _whole_part(self, item: UpstreamItem, index: int, part: dict[str, Any], words: Words) -> None:
        channel = _CHANNELS.get(str(part.get("type")))
        text = part.get("refusal") if channel == "refusal" else part.get("text")
        if channel is None or not isinstance(text, str):
            return
        self._complete(item, channel, index, text, _tokens(part.get("logprobs")), words)
        heard = item.part_of(channel, index)
        annotations = [annotation for _, annotation in _numbered(part.get("annotations"))] if channel == "text" else []
        for annotation in annotations[heard.annotations :]:
            heard.annotations += 1
            self._items.say(item, talk_events.Annotated(self._id, annotation), words)

    # Calls

    def _argue(self, event: Event, text: Any, words: Words, *, is_all: bool = False) -> None:
        item = self._items.find(event, "call", is_late=is_all)
        if item.is_done:
            return
        if event.name:
            item.name = item.name or event.name
        self._arguments(item, _json(text), words, is_all=is_all)

    def _arguments(self, item: UpstreamItem, text: str, words: Words, *, is_all: bool) -> None:
        said = item.part.chars if is_all else 0
        item.part.chars += len(text[said:])
        if not text[said:]:
            return
        if item.call_id:
            self._items.say(item, talk_events.Arguments(self._id, item.call_id, text[said:]), words)
        else:
            item.early.append(text[said:])

    def _announce(self, item: UpstreamItem, fields: dict[str, Any], words: Words) -> None:
        """Tell that a call begins, now that its name is known."""
        if item.call_id or not (name := str(fields.get("name") or item.name)):
            return
        given = str(fields.get("call_id") or item.given_id or "")
        is_fresh = 0 < len(given) <= 64 and given not in self._call_ids
        item.call_id = given if is_fresh else f"call_{self._id.removeprefix('resp_')[:24]}{len(self._call_ids) + 1}"
        self._call_ids.add(item.call_id)
        namespace = fields.get("namespace") if isinstance(fields.get("namespace"), str) else None
        if (tool := self._offered.get(name)) is not None and not namespace:
            name, namespace = tool.name, tool.namespace
        is_custom = fields.get("type") == "custom_tool_call"
        self._items.say(item, talk_events.Calling(self._id, item.call_id, name, custom=is_custom, namespace=namespace or None), words)
        if item.early:
            self._items.say(item, talk_events.Arguments(self._id, item.call_id, "".join(item.early)), words)
            item.early.clear()

    # Items

    def _added(self, event: Event, words: Words) -> None:
        fields = event.item if isinstance(event.item, dict) else {}
        kind = KINDS.get(str(fields.get("type")), "hosted")
        item = self._items.begin(_id_in(fields), event.output_index, kind)
        if item.is_done:
            return
        item.phase = _PHASES.get(str(fields.get("phase")))
        if kind == "call":
            self._announce(item, fields, words)
        if kind == "hosted" and "type" in fields:
            self._items.say(item, talk_events.HostedBegan(self._id, fields), words)

    def _done(self, event: Event, words: Words) -> None:
        if isinstance(event.item, dict):
            kind = KINDS.get(str(event.item.get("type")), "hosted")
            self._whole(self._items.end(_id_in(event.item), event.output_index, kind), event.item, words)

    def _whole(self, item: UpstreamItem, fields: dict[str, Any], words: Words) -> None:
        """All of an item: say what is still missing of it."""
        if item.is_done:
            return
        item.phase = item.phase or _PHASES.get(str(fields.get("phase")))
        _WHOLES[item.kind](self, item, fields, words)
        self._items.close(item, words, is_whole=fields.get("status") != "incomplete")

    def _whole_message(self, item: UpstreamItem, fields: dict[str, Any], words: Words) -> None:
        content = fields.get("content")
        if isinstance(content, str):
            content = [{"type": "output_text", "text": content}]
        for index, part in _numbered(content):
            self._whole_part(item, index, part, words)

    def _whole_reasoning(self, item: UpstreamItem, fields: dict[str, Any], words: Words) -> None:
        self._whole_message(item, fields, words)
        for index, part in _numbered(fields.get("summary")):
            if isinstance(part.get("text"), str):
                self._complete(item, "summary", index, part["text"], (), words)
        if sealed := fields.get("encrypted_content"):
            self._items.say(item, talk_events.Sealed(self._id, str(sealed)), words)

    def _whole_call(self, item: UpstreamItem, fields: dict[str, Any], words: Words) -> None:
        self._announce(item, fields, words)
        text = fields.get("input") if fields.get("type") == "custom_tool_call" else fields.get("arguments")
        self._arguments(item, _json(text), words, is_all=True)
        if item.call_id and not item.part.chars and fields.get("type") == "function_call" and fields.get("status") != "incomplete":
            self._arguments(item, "{}", words, is_all=True)  # of a function without parameters; clients read it as JSON
        if item.call_id and fields.get("status") != "incomplete":
            self._items.say(item, talk_events.Called(self._id, item.call_id), words)

    def _whole_hosted(self, item: UpstreamItem, fields: dict[str, Any], words: Words) -> None:
        if "type" in fields:
            if not item.is_announced:
                self._items.say(item, talk_events.HostedBegan(self._id, fields), words)
            self._items.say(item, talk_events.HostedDone(self._id, fields), words)

    # The end

    def _end(self, body: msgspec.Raw, status: str, words: Words) -> None:
        try:
            response = loose.decode_response(body) if body else loose.Response()
        except (ValueError, RecursionError) as error:
            raise UpstreamTrouble(f"The model server sent what is no response: {error}.", code="upstream_malformed") from None
        status = response.status or status
        if status == "failed":
            raise failure(response.error)
        self._compare(response.output or [], words)
        self._items.flush(words)
        if any(item.early for item in self._items.all):
            raise UpstreamTrouble("The model server garbled a tool call: it never named it.")
        if response.usage is not None:
            words.append(_used(self._id, response.usage))
        reasons = {"completed": "stop", "cancelled": "cancelled"}
        reason = response.incomplete_details.reason if response.incomplete_details else None
        words.append(talk_events.Ended(self._id, reasons.get(status) or REASONS.get(reason, "length")))  # type: ignore[arg-type]

    def _compare(self, output: list[Any], words: Words) -> None:
        """Say what the final output has and the events did not."""
        counts: dict[Kind, int] = {}
        for _, fields in _numbered(output):
            kind = KINDS.get(str(fields.get("type")), "hosted")
            number = counts[kind] = counts.get(kind, -1) + 1
            self._whole(self._items.match(_id_in(fields), kind, number), fields, words)


_WORDS: dict[str, Callable[[str, str, tuple[talk_events.TokenLogprob, ...]], talk_events.FromEngine]] = {
    "text": talk_events.Text,
    "refusal": lambda id, text, _tokens: talk_events.Refusal(id, text),
    "reasoning": lambda id, text, _tokens: talk_events.Reasoning(id, text),
    "summary": lambda id, text, _tokens: talk_events.Reasoning(id, text, summary=True),
}

_CHANNELS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "reasoning", "text": "text"}
"""What the parts of messages and of reasoning are; `text` is what some servers call the model's text."""

_PHASES: dict[str, turns.Phase] = {"commentary": "commentary", "final_answer": "final_answer"}

_WHOLES: dict[Kind, Callable[[ResponsesReading, UpstreamItem, dict[str, Any], Words], None]] = {
    "message": ResponsesReading._whole_message,
    "reasoning": ResponsesReading._whole_reasoning,
    "call": ResponsesReading._whole_call,
    "hosted": ResponsesReading._whole_hosted,
}

_Read = Callable[[ResponsesReading, Event, Words], None]

_READS: dict[str, _Read] = {
    "response.output_item.added": ResponsesReading._added,
    "response.output_item.done": ResponsesReading._done,
    "response.output_text.delta": lambda reading, event, words: reading._grow("message", "text", event, event.delta, words),
    "response.output_text.done": lambda reading, event, words: reading._grow("message", "text", event, event.text, words, is_all=True),
    "response.output_text.annotation.added": ResponsesReading._cite,
    "response.refusal.delta": lambda reading, event, words: reading._grow("message", "refusal", event, event.delta, words),
    "response.refusal.done": lambda reading, event, words: reading._grow("message", "refusal", event, event.refusal, words, is_all=True),
    "response.content_part.done": ResponsesReading._part_done,
    "response.reasoning_text.delta": lambda reading, event, words: reading._grow("reasoning", "reasoning", event, event.delta, words),
    "response.reasoning_text.done": lambda reading, event, words: reading._grow(
        "reasoning", "reasoning", event, event.text, words, is_all=True
    ),
    "response.reasoning_summary_text.delta": lambda reading, event, words: reading._grow("reasoning", "summary", event, event.delta, words),
    "response.reasoning_summary_text.done": lambda reading, event, words: reading._grow(
        "reasoning", "summary", event, event.text, words, is_all=True
    ),
    "response.reasoning_summary_part.done": ResponsesReading._summary_done,
    "response.function_call_arguments.delta": lambda reading, event, words: reading._argue(event, event.delta, words),
    "response.function_call_arguments.done": lambda reading, event, words: reading._argue(event, event.arguments, words, is_all=True),
    "response.custom_tool_call_input.delta": lambda reading, event, words: reading._argue(event, event.delta, words),
    "response.custom_tool_call_input.done": lambda reading, event, words: reading._argue(event, event.input, words, is_all=True),
}

ALIASES = {
    # Open Responses
    "response.reasoning.delta": "response.reasoning_text.delta",
    "response.reasoning.done": "response.reasoning_text.done",
    # leseb's gateway
    "response.reasoning_summary.delta": "response.reasoning_summary_text.delta",
    "response.reasoning_summary.done": "response.reasoning_summary_text.done",
    "response.output_text_annotation.added": "response.output_text.annotation.added",
    # OGX
    "response.mcp_call.arguments.delta": "response.mcp_call_arguments.delta",
    "response.mcp_call.arguments.done": "response.mcp_call_arguments.done",
}
"""Other names of events, and what the original calls them."""

_READS |= {alias: _READS[name] for alias, name in ALIASES.items() if name in _READS}

SKIPPED = frozenset(
    (
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.content_part.added",
        "response.reasoning_part.added",
        "response.reasoning_part.done",
        "response.reasoning_summary_part.added",
        # What these have to say is in the text; no engine of this kind is asked for sound.
        "response.audio.delta",
        "response.audio.done",
        "response.audio.transcript.delta",
        "response.audio.transcript.done",
    )
)
"""Events that say nothing which another does not say too. Those of hosted tools are passed on, and unknown ones pass unheard."""


def failure(error: Any) -> Fault:
    """The fault in an error that came within a stream."""
    code = error.get("code") if isinstance(error, dict) else None
    status = ERROR_STATUSES.get(str(code)) or (400 if str(code).startswith("invalid_") else None)
    if status is not None:
        return refused(status, {}, msgspec.json.encode({"error": error}))
    return said_midway(error)


def _flat(event: Event) -> dict[str, Any]:
    return {"code": event.code, "message": event.message, "param": event.param}


def _id_in(fields: dict[str, Any]) -> str | None:
    given = fields.get("id")
    return given if isinstance(given, str) and given else None


def _numbered(parts: Any) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a list, with their places; nothing of what is none."""
    return [(index, part) for index, part in enumerate(parts) if isinstance(part, dict)] if isinstance(parts, list) else []


def _json(text: Any) -> str:
    """Arguments as text; some servers send the object itself."""
    if isinstance(text, str):
        return text
    return "" if text is None else msgspec.json.encode(text).decode()


def _tokens(logprobs: Any) -> tuple[talk_events.TokenLogprob, ...]:
    try:
        return tuple(likely(token) for token in msgspec.convert(logprobs or [], list[TokenLogprob]))
    except msgspec.ValidationError:
        return ()


def _used(id: str, usage: loose.Usage) -> talk_events.Used:
    given, made = usage.input_tokens_details or loose.InputDetails(), usage.output_tokens_details or loose.OutputDetails()
    return talk_events.Used(
        id=id,
        input_tokens=count(usage.input_tokens),
        output_tokens=count(usage.output_tokens),
        cached_tokens=count(given.cached_tokens),
        cache_write_tokens=count(given.cache_write_tokens),
        reasoning_tokens=count(made.reasoning_tokens),
    )
