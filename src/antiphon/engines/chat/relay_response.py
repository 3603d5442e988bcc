"""
The answer to a request that was passed on: as it came, but for the model's name and what would break a client.

Nearly every event of a stream is text and nothing else: it is searched for what matters, not decoded.
"""

import re
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.engine_api import events as engine_events
from antiphon.engine_api.fast_path import TextSeries
from antiphon.engines.chat.response import END_REASONS, FAILURE_REASONS, usage_event
from antiphon.engines.upstream.fast_path import PROBE, TextTemplate, text_places
from antiphon.engines.upstream.faults import error_from_stream
from antiphon.errors import UpstreamError, shorten
from antiphon.offload import offload
from antiphon.wire.codec.repair import repair_json
from antiphon.wire.codec.sse import DONE
from antiphon.wire.codec.types import JsonDict, JsonValue
from antiphon.wire.upstream.chat_completions import Usage

Mend = Literal["role", "index", "choices", "delta", "done", "stream"]
"""
What was missing of an answer: the chunk with the role, without which openai-node's `stream` throws; the index of a
choice or a call, without which openai-python's throws and openai-node loses the call; `choices`, which clients read
from every chunk; `delta`, likewise; `[DONE]`; the stream itself.
"""

CountMend = Callable[[Mend], None]

_REMARKABLE = re.compile(
    rb'"(?:error"|usage"\s*:\s*\{|finish_reason"\s*:\s*"|tool_calls"\s*:\s*\[\s*\{|(?:kv|ec)_transfer_params"|message"|(?:choices|delta)"\s*:\s*null)'
)
"""What is in an event that has to be decoded. A quote within a text is escaped, so few texts look like one of these."""

_MODEL = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')
_PRIVATE_KEYS = ("kv_transfer_params", "ec_transfer_params")
"""Where a server keeps what it has computed: nothing that a client may know, or send back."""


class _Call(Struct):
    index: int | None = None


class _Delta(Struct):
    role: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    index: int | None = None
    delta: _Delta | None = None
    message: JsonDict | None = None
    finish_reason: str | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    model: JsonValue = None
    usage: Usage | None = None
    error: JsonValue = None
    object: JsonValue = None
    kv_transfer_params: JsonValue = None
    ec_transfer_params: JsonValue = None

    @property
    def is_private(self) -> bool:
        """Whether it has something that no client may see."""
        return bool(self.kv_transfer_params or self.ec_transfer_params)


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _AnyObject(Struct):
    """Any JSON object."""


_check_object = msgspec.json.Decoder(_AnyObject).decode


def _is_valid(event: bytes) -> bool:
    """Whether clients can decode an event: it is an object, in UTF-8 throughout."""
    try:
        _check_object(event)
        return event.isascii() or bool(event.decode())
    except (ValueError, RecursionError):
        return False


def _repair_text(body: bytes) -> bytes:
    """The body with U+FFFD in the place of broken UTF-8."""
    return body if body.isascii() else body.decode("utf-8", "replace").encode()


class RelayStreamReader:
    """
    Reads one stream.

    Args:
        id: of the response.
        model: the name that the client asked for, which its answer has.
        is_chat: whether its choices are messages, not texts.
        choices: how many answers were asked for.
        wants_usage: whether the client asked for usage.
        count_mend: called for each kind of mend, once.
        is_whole: the client wants the answer as a whole, and is given none of these events.
    """

    def __init__(
        self, id: str, model: str, *, is_chat: bool, choices: int, wants_usage: bool, count_mend: CountMend, is_whole: bool = False
    ) -> None:
        self._id = id
        self._is_whole = is_whole
        self._asked_model = model
        self._model = b'"model":' + msgspec.json.encode(model)
        self._upstream_model: bytes | None = None
        self._is_chat = is_chat
        self._unseen_choices = choices
        self._wants_usage = wants_usage
        self._count_mend = count_mend
        self._mends: set[Mend] = set()
        self._open_choices: dict[int, str | None] = {}
        self._call_ids: dict[int, list[str | None]] = {}
        self._lacks_index = False
        self._last_chunk: JsonDict = {}
        self._usage: Usage | None = None

    def read(self, events: list[bytes], out: list[engine_events.EngineEvent]) -> bool:
        for event in events:
            if self._is_plain(event):
                out.append(engine_events.RelayData(self._id, self._rename(event), self._is_whole))
            elif event.strip() == DONE:
                return self._end(out)
            elif event:
                self._read_chunk(event, out)
        return False

    def text_template(self, event: bytes) -> TextTemplate | None:
        for before, behind in text_places(event):
            probe = before + PROBE + behind
            if self._is_plain(probe):
                relayed_before, _, relayed_behind = self._rename(probe).partition(PROBE)
                # A name that holds the probe is no reason to be wrong.
                if PROBE not in before + behind + relayed_before + relayed_behind:
                    return TextTemplate(before, behind, TextSeries(self._id, (relayed_before, relayed_behind)))
        return None

    def _is_plain(self, event: bytes) -> bool:
        """Whether an event is passed on without being decoded."""
        is_plain = not self._unseen_choices and not self._lacks_index and b'"choices"' in event and _REMARKABLE.search(event) is None
        return is_plain and _is_valid(event)

    def finish(self, out: list[engine_events.EngineEvent]) -> bool:
        if not self._open_choices or None in self._open_choices.values():
            return False
        self._mend("done")
        return self._end(out)

    def cut(self, out: list[engine_events.EngineEvent]) -> None:
        if not self._open_choices:
            error = UpstreamError("The model server sent too much before its answer began.", code="upstream_malformed")
            out.append(engine_events.ResponseFailed.from_error(self._id, error))
            return
        for index, reason in self._open_choices.items():
            if reason is None:
                content: JsonDict = {"delta": {}} if self._is_chat else {"text": ""}
                self._add({**self._last_chunk, "choices": [{"index": index, **content, "finish_reason": "length"}]}, out)
                self._open_choices[index] = "length"
        self._end(out)

    def _end(self, out: list[engine_events.EngineEvent]) -> bool:
        if self._usage is not None:
            out.append(usage_event(self._id, self._usage))
        reasons = [END_REASONS.get(reason or "", "stop") for reason in self._open_choices.values()]
        out.append(engine_events.ResponseEnded(self._id, reasons[0] if reasons else "stop"))
        return True

    def _mend(self, kind: Mend) -> None:
        if kind not in self._mends:
            self._mends.add(kind)
            self._count_mend(kind)

    def _rename(self, event: bytes) -> bytes:
        """The event with the name of the model that the client asked for."""
        if self._upstream_model is None or self._upstream_model not in event:
            match = _MODEL.search(event)
            if match is None:
                return event
            self._upstream_model = match.group()
        return event if self._upstream_model == self._model else event.replace(self._upstream_model, self._model, 1)

    def _read_chunk(self, event: bytes, out: list[engine_events.EngineEvent]) -> None:
        event = _repair_text(event)
        try:
            chunk = _decode_chunk(event)
        except (ValueError, RecursionError) as error:
            event, chunk = repair_json(event, _decode_chunk, error, "chat completion")
        if chunk.error or chunk.object == "error":
            raise error_from_stream(chunk.error or _decode_all(event))
        if chunk.usage is not None:
            self._usage = chunk.usage
            if not chunk.choices and not self._wants_usage:
                return
        content = self._mend_chunk(chunk, event, out)
        for choice in chunk.choices or ():
            self._note_choice(choice)
        if content is None:
            out.append(engine_events.RelayData(self._id, self._rename(event), self._is_whole))
        else:
            self._add(content, out)

    def _note_choice(self, choice: _Choice) -> None:
        index = choice.index or 0
        if index not in self._open_choices:
            self._open_choices[index] = None
            self._unseen_choices = max(0, self._unseen_choices - 1)
        if choice.finish_reason:
            self._open_choices[index] = choice.finish_reason
            if choice.finish_reason in FAILURE_REASONS:
                problem = f"stopped in the middle of its answer ('{shorten(choice.finish_reason)}')"
                raise UpstreamError(f"The model server {problem}.", code="server_error")

    def _mend_chunk(self, chunk: _Chunk, event: bytes, out: list[engine_events.EngineEvent]) -> JsonDict | None:
        """The chunk with what it lacks; None if it lacks nothing. A role that is missing goes out before it."""
        lacks_choices = chunk.choices is None
        choices = chunk.choices or []
        self._lacks_index = self._lacks_index or any(choice.index is None for choice in choices)
        lacks_calls = any(call.index is None for choice in choices for call in _calls(choice))
        is_whole = any(choice.message is not None and choice.delta is None for choice in choices)
        lacks_delta = self._is_chat and any(choice.delta is None and choice.message is None for choice in choices)
        new_choices = [choice for choice in choices if (choice.index or 0) not in self._open_choices]
        lacks_role = self._is_chat and any(choice.delta is None or not choice.delta.role for choice in new_choices)
        has_lack = lacks_choices or self._lacks_index or lacks_calls or lacks_delta or is_whole or chunk.is_private
        if not self._last_chunk or lacks_role or has_lack:
            content = _decode_all(event)
            for key in _PRIVATE_KEYS:
                content.pop(key, None)
            head_keys = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
            self._last_chunk = {key: content[key] for key in head_keys if key in content}
            self._mend_content(content, is_whole=is_whole)
            if lacks_role and not is_whole:
                self._add_roles(new_choices, out)
            if has_lack:
                return content
        return None

    def _mend_content(self, content: JsonDict, *, is_whole: bool) -> None:
        if not isinstance(content.get("choices"), list):
            self._mend("choices")
            content["choices"] = []
        for position, choice in enumerate(content["choices"]):
            if choice.get("index") is None:
                self._mend("index")
                choice["index"] = position
            if is_whole and "message" in choice:
                self._mend("stream")
                content["object"] = self._last_chunk["object"] = "chat.completion.chunk"
                choice["delta"] = {"role": "assistant"} | (choice.pop("message") or {})
            if self._is_chat and choice.get("delta") is None:
                self._mend("delta")
                choice["delta"] = {}
            delta = choice.get("delta")
            for call in (delta.get("tool_calls") if isinstance(delta, dict) else None) or ():
                if call.get("index") is None:
                    self._mend("index")
                    call["index"] = self._call_index(choice["index"], call.get("id"))

    def _call_index(self, choice: int, call_id: str | None) -> int:
        """A call without an index: with an id that is new it is the next one, else the last."""
        ids = self._call_ids.setdefault(choice, [])
        if call_id in ids:
            return ids.index(call_id)
        if call_id or not ids:
            ids.append(call_id)
        return len(ids) - 1

    def _add_roles(self, choices: list[_Choice], out: list[engine_events.EngineEvent]) -> None:
        self._mend("role")
        roles = [{"index": choice.index or 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None} for choice in choices]
        for role in roles:
            self._add({**self._last_chunk, "choices": [role]}, out)

    def _add(self, chunk: JsonDict, out: list[engine_events.EngineEvent]) -> None:
        if "model" in chunk:
            chunk["model"] = self._asked_model
        out.append(engine_events.RelayData(self._id, msgspec.json.encode(chunk), self._is_whole))


def _calls(choice: _Choice) -> list[_Call]:
    return (choice.delta.tool_calls if choice.delta is not None else None) or []


# Whole answers


class _WholeChoice(Struct):
    index: int | None = None
    message: _AnyObject | UnsetType = UNSET
    finish_reason: str | None = None


_CHUNK = re.compile(rb'"object"\s*:\s*"[^"]*\.chunk"|"delta"\s*:')
"""What only a chunk of a stream has. Within a text, its quotes are escaped."""

_MESSAGE = re.compile(rb'"message"\s*:')


def _is_chunk(event: bytes) -> bool:
    return _CHUNK.search(event) is not None and _MESSAGE.search(event) is None


class WholeRelayReader:
    """
    Keeps an answer that is not streamed, until `conclude` reads it.

    Args:
        id: of the response.
        model: the name that the client asked for, which its answer has.
        stream: reads it where the server streams although it was not asked to.
        has_choices: whether the answer must have some.
        count_mend: as for `RelayStreamReader`.
    """

    def __init__(self, id: str, model: str, stream: RelayStreamReader, *, has_choices: bool, count_mend: CountMend) -> None:
        self._id = id
        self._model = model
        self._stream = stream
        self._is_stream = False
        self._has_choices = has_choices
        self._count_mend = count_mend
        self._body = b""

    def read(self, events: list[bytes], out: list[engine_events.EngineEvent]) -> bool:
        self._is_stream = self._is_stream or (self._has_choices and _is_chunk(events[0]))
        if self._is_stream:
            return self._stream.read(events, out)
        self._body = events[0]
        return True

    def finish(self, out: list[engine_events.EngineEvent]) -> bool:
        return self._is_stream and self._stream.finish(out)

    def cut(self, out: list[engine_events.EngineEvent]) -> None:
        self._stream.cut(out)  # an answer of one body that is too large fails

    async def conclude(self) -> list[engine_events.EngineEvent]:
        """
        The events of the answer.

        Raises:
            ApiError: it says that the request failed, or is no answer.
        """
        if self._is_stream:
            return []
        body, self._body = self._body, b""
        return await offload(len(body), self._conclude, body)

    def _conclude(self, body: bytes) -> list[engine_events.EngineEvent]:
        body = _repair_text(body)
        try:
            fields = _decode_fields(body)
        except (ValueError, RecursionError) as error:
            body, fields = repair_json(body, _decode_fields, error, "answer")
        if (problem := _value(fields.get("error"))) or _value(fields.get("object")) == "error":
            raise error_from_stream(problem or _decode_all(body))
        reason: engine_events.EndReason = "stop"
        if self._has_choices:
            reason = END_REASONS.get(self._mend_choices(fields) or "", "stop")
        for key in _PRIVATE_KEYS:
            fields.pop(key, None)
        fields["model"] = Raw(msgspec.json.encode(self._model))
        out: list[engine_events.EngineEvent] = [engine_events.RelayData(self._id, msgspec.json.encode(fields))]
        if (usage := _usage(fields.get("usage"))) is not None:
            out.append(usage_event(self._id, usage))
        out.append(engine_events.ResponseEnded(self._id, reason))
        return out

    def _mend_choices(self, fields: dict[str, Raw]) -> str | None:
        """The reason why the first answer ended."""
        try:
            choices = msgspec.json.decode(fields["choices"], type=list[_WholeChoice])
        except (KeyError, msgspec.ValidationError):
            raise UpstreamError("The model server sent an answer without choices.", code="upstream_malformed") from None
        if any(choice.index is None for choice in choices):
            self._count_mend("index")
            contents = msgspec.json.decode(fields["choices"], type=list[dict[str, Raw]])
            with_indices = [
                content if choice.index is not None else {**content, "index": Raw(b"%d" % position)}
                for position, (choice, content) in enumerate(zip(choices, contents, strict=True))
            ]
            fields["choices"] = Raw(msgspec.json.encode(with_indices))
        return choices[0].finish_reason if choices else None


_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def _decode_all(event: bytes) -> JsonDict:
    """
    An object that has been decoded in part.

    Raises:
        UpstreamError: it has a number that is out of range.
    """
    try:
        return msgspec.json.decode(event, type=JsonDict)
    except ValueError as error:
        raise UpstreamError(f"The model server sent what is no answer: {error}.", code="upstream_malformed") from None


def _value(raw: Raw | None) -> JsonValue:
    return None if raw is None else _decode_all(b'{"value":%b}' % bytes(raw))["value"]


def _usage(raw: Raw | None) -> Usage | None:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=Usage | None)
    except msgspec.ValidationError:
        return None
