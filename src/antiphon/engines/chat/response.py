"""A streamed chat completion, as engine events."""

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from antiphon.engine_api import events as engine_events
from antiphon.engine_api.fast_path import TextSeries
from antiphon.engine_api.options import Tool
from antiphon.engines.chat.tool_calls import ToolCallAssembler
from antiphon.engines.upstream.fast_path import PROBE, TextTemplate, text_places
from antiphon.engines.upstream.faults import error_from_stream
from antiphon.errors import UpstreamError, shorten
from antiphon.wire.codec.repair import repair_json
from antiphon.wire.codec.sse import DONE
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.upstream import chat_completions

END_REASONS: dict[str, engine_events.EndReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
}
"""
End reasons by `finish_reason`; all others (`stop`, `tool_calls`, `function_call`, unknown ones) mean a complete
response.
"""

IMPOSSIBLE_LOGPROB = -9999.0
"""The log probability of an impossible token, as vLLM and OpenAI's API report it."""

FAILURE_REASONS = frozenset({"error", "abort", "network_error"})
"""Values of `finish_reason` with which some servers report a failure."""

_EMPTY_CHUNK = chat_completions.Chunk(choices=[chat_completions.Choice(delta=chat_completions.Delta())])
_PROBE_CHUNK = chat_completions.Chunk(choices=[chat_completions.Choice(delta=chat_completions.Delta(content=PROBE.decode()))])


class ChatResponseReader:
    """
    Reads one response.

    Args:
        id: of the response.
        tools: by the names that the server was sent.
    """

    def __init__(self, id: str, tools: Mapping[str, Tool]) -> None:
        self._id = id
        self._calls = ToolCallAssembler(id, tools)
        self._finish_reason: str | None = None
        self._stop_sequence: str | None = None
        self._usage: chat_completions.Usage | None = None

    def read(self, events: list[bytes], out: list[engine_events.EngineEvent]) -> bool:
        for event in events:
            try:
                chunk = chat_completions.decode_chunk(event)
            except (ValueError, RecursionError) as error:
                if not event:
                    continue
                if event.strip() == DONE:
                    return self._end(out)
                _, chunk = repair_json(event, chat_completions.decode_chunk, error, "chat completion")
            choices = chunk.choices
            if choices and (delta := choices[0].delta) is not None and type(content := delta.content) is str and content:
                # Nearly every chunk has text and nothing else: without it, the chunk then equals an empty one.
                delta.content = None
                if chunk == _EMPTY_CHUNK:
                    out.append(engine_events.TextDelta(self._id, content))
                    continue
                delta.content = content
            elif choices is None and chunk.usage is None and not chunk.error:
                _check_error(event)
            self._read_chunk(chunk, out)
        return False

    def text_template(self, event: bytes) -> TextTemplate | None:
        for before, behind in text_places(event):
            try:
                chunk = chat_completions.decode_chunk(before + PROBE + behind)
            except (ValueError, RecursionError):
                continue
            if chunk == _PROBE_CHUNK:
                return TextTemplate(before, behind, TextSeries(self._id))
        return None

    def finish(self, out: list[engine_events.EngineEvent]) -> bool:
        return self._finish_reason is not None and self._end(out)

    def cut(self, out: list[engine_events.EngineEvent]) -> None:
        self._finish_reason = "length"
        self._end(out)

    def _end(self, out: list[engine_events.EngineEvent]) -> bool:
        reason = END_REASONS.get(self._finish_reason or "", "stop")
        self._calls.close(out, is_complete=reason == "stop")
        if (usage := self._usage) is not None:
            out.append(usage_event(self._id, usage))
        out.append(engine_events.ResponseEnded(self._id, reason, self._stop_sequence if reason == "stop" else None))
        return True

    def _read_chunk(self, chunk: chat_completions.Chunk, out: list[engine_events.EngineEvent]) -> None:
        if chunk.error:
            raise error_from_stream(chunk.error)
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            delta = choice.delta or choice.message
            if not choice.index and delta is not None:
                self._read_delta(delta, choice.logprobs, out, is_complete=delta is choice.message)
            if choice.message is not None and not choice.finish_reason:
                self._finish_reason = self._finish_reason or "stop"  # a message is complete, also without a finish reason
            if choice.finish_reason:
                self._finish_reason = choice.finish_reason
                # vLLM: the stop sequence, or the id of a token that ended the answer.
                self._stop_sequence = choice.stop_reason if isinstance(choice.stop_reason, str) else None
                if choice.finish_reason in FAILURE_REASONS:
                    problem = f"stopped in the middle of its answer ('{shorten(choice.finish_reason)}')"
                    raise UpstreamError(f"The model server {problem}.", code="server_error")

    def _read_delta(
        self,
        delta: chat_completions.Delta,
        logprobs: chat_completions.Logprobs | None,
        out: list[engine_events.EngineEvent],
        *,
        is_complete: bool,
    ) -> None:
        id = self._id
        # Some servers send the same text under both names, for clients that know only one.
        reasoning = delta.reasoning_content or delta.reasoning
        if isinstance(reasoning, str) and reasoning:
            out.append(engine_events.ReasoningDelta(id, reasoning))
        text = delta.content if isinstance(delta.content, str) else self._read_parts(delta.content or (), out)
        tokens = tuple(token_logprob(token) for token in logprobs.content or ()) if logprobs is not None else ()
        if text or tokens:
            out.append(engine_events.TextDelta(id, text, tokens))
        if delta.refusal:
            out.append(engine_events.RefusalDelta(id, delta.refusal))
        for annotation in delta.annotations or ():
            out.append(engine_events.AnnotationAdded(id, _annotation(annotation)))
        for call in delta.tool_calls or ():
            self._calls.add(call, out)
            if is_complete:
                self._calls.close(out)
        if delta.function_call is not None:
            self._calls.add(chat_completions.ToolCall(index=0, function=delta.function_call), out)

    def _read_parts(self, parts: Sequence[object], out: list[engine_events.EngineEvent]) -> str:
        """The text of content in parts, as Mistral's reasoning models send it, with their thinking among the parts."""
        texts: list[str] = []
        for part in parts:
            if not isinstance(part, dict):
                continue
            thinking = part.get("thinking")
            if isinstance(thinking, list) and (reasoning := self._read_parts(thinking, out)):
                out.append(engine_events.ReasoningDelta(self._id, reasoning))
            if isinstance(part.get("text"), str):
                texts.append(part["text"])
        return "".join(texts)


def _check_error(event: bytes) -> None:
    """
    Check an event without choices.

    Raises:
        ApiError: it is an error as older vLLM sends it, without the key `error`: `{"object": "error", "message": ...}`.
    """
    fields = None
    with contextlib.suppress(ValueError, RecursionError):  # it was repaired to be read at all
        fields = msgspec.json.decode(event)
    if isinstance(fields, dict) and fields.get("object") == "error":
        raise error_from_stream(fields)


def token_logprob(token: chat_completions.TokenLogprob) -> engine_events.TokenLogprob:
    """A token's log probability and its alternatives, as engine events have them."""
    alternatives = tuple(_candidate(other) for other in token.top_logprobs or ())
    return engine_events.TokenLogprob(_candidate(token), alternatives)


def _candidate(token: chat_completions.TopLogprob) -> engine_events.TokenCandidate:
    utf8 = token.bytes if token.bytes is not None else token.token.encode()
    return engine_events.TokenCandidate(token.token, IMPOSSIBLE_LOGPROB if token.logprob is None else token.logprob, tuple(utf8))


def _annotation(annotation: JsonDict) -> JsonDict:
    """A citation in the Responses API's shape: flat, where chat completions nest its fields under its type."""
    kind = annotation.get("type")
    details = annotation.get(kind) if isinstance(kind, str) else None
    return {"type": kind, **details} if isinstance(details, dict) else annotation


def usage_event(id: str, usage: chat_completions.Usage) -> engine_events.Usage:
    """The token counts of a response."""
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    reasoning = completion.reasoning_tokens if completion is not None else usage.reasoning_tokens
    return engine_events.Usage(
        id=id,
        input_tokens=token_count(usage.prompt_tokens),
        output_tokens=token_count(usage.completion_tokens),
        cached_tokens=token_count(prompt.cached_tokens if prompt is not None else 0),
        reasoning_tokens=token_count(reasoning),
    )


def token_count(value: float | None) -> int:
    """A count of tokens: some servers send a fraction, or null. `Usage` checks the range."""
    return int(value or 0)
