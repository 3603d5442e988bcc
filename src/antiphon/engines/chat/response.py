"""A streamed chat completion, in the engine's words."""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.engine_api import events as engine_events
from antiphon.engine_api.options import Tool
from antiphon.engines.chat.tool_calls import ToolCallAssembler
from antiphon.engines.upstream.faults import error_from_stream
from antiphon.errors import UpstreamError, shorten
from antiphon.wire.codec.repair import repair_json
from antiphon.wire.upstream import chat_completions

END_REASONS: dict[str, engine_events.EndReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
}
"""Why an answer ended, where it is not that all was said (`stop`, `tool_calls`, `function_call`, and what we know nothing of)."""

IMPOSSIBLE_LOGPROB = -9999.0
"""The log probability of what can't be, as vLLM and OpenAI's API give it."""

FAILURE_REASONS = frozenset({"error", "abort", "network_error"})
"""Reasons of servers that say of a failure that the answer is finished."""


_EMPTY_CHUNK = chat_completions.Chunk(choices=[chat_completions.Choice(delta=chat_completions.Delta())])


class ChatResponseReader:
    """
    The reading of one answer.

    Args:
        id: of the response.
        offered: the tools by the names that the server was given.
    """

    def __init__(self, id: str, tools: Mapping[str, Tool]) -> None:
        self._id = id
        self._calls = ToolCallAssembler(id, tools)
        self._finish_reason: str | None = None
        self._usage: chat_completions.Usage | None = None

    def read(self, events: list[bytes], out: list[engine_events.EngineEvent]) -> bool:
        """Add what `events` say; whether the answer is over."""
        for event in events:
            try:
                chunk = chat_completions.decode_chunk(event)
            except (ValueError, RecursionError) as error:
                if not event:
                    continue
                if event.strip() == chat_completions.DONE:
                    return self._end(out)
                _, chunk = repair_json(event, chat_completions.decode_chunk, error, "chat completion")
            choices = chunk.choices
            if choices and (delta := choices[0].delta) is not None and type(content := delta.content) is str and content:
                # Nearly every chunk is a piece of text and nothing else: what is left without it is then a chunk of nothing.
                delta.content = None
                if chunk == _EMPTY_CHUNK:
                    out.append(engine_events.TextDelta(self._id, content))
                    continue
                delta.content = content
            elif choices is None and chunk.usage is None and not chunk.error:
                _check_error(event)
            self._read_chunk(chunk, out)
        return False

    def finish(self, out: list[engine_events.EngineEvent]) -> bool:
        """Nothing more comes: the end, if the server had said that the answer was finished."""
        return self._finish_reason is not None and self._end(out)

    def _end(self, out: list[engine_events.EngineEvent]) -> bool:
        reason = END_REASONS.get(self._finish_reason or "", "stop")
        self._calls.close(out, is_complete=reason == "stop")
        if (usage := self._usage) is not None:
            out.append(_usage(self._id, usage))
        out.append(engine_events.ResponseEnded(self._id, reason))
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
                self._finish_reason = self._finish_reason or "stop"  # a message comes whole, also where the server forgot to say so
            if choice.finish_reason:
                self._finish_reason = choice.finish_reason
                if choice.finish_reason in FAILURE_REASONS:
                    raise UpstreamError(f"The model server gave up in the middle of its answer ('{shorten(choice.finish_reason)}').")

    def _read_delta(
        self,
        delta: chat_completions.Delta,
        logprobs: chat_completions.Logprobs | None,
        out: list[engine_events.EngineEvent],
        *,
        is_complete: bool,
    ) -> None:
        id = self._id
        # Some servers say the same under both names, for clients that know only one.
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

    def _read_parts(self, parts: Any, out: list[engine_events.EngineEvent]) -> str:
        """The text of content that came as parts; Mistral's reasoning models send such, with their thinking among them."""
        texts: list[str] = []
        for part in parts:
            if not isinstance(part, dict):
                continue
            thinking = part.get("thinking")
            if isinstance(thinking, list) and (thought := self._read_parts(thinking, out)):
                out.append(engine_events.ReasoningDelta(self._id, thought))
            if isinstance(part.get("text"), str):
                texts.append(part["text"])
        return "".join(texts)


def _check_error(event: bytes) -> None:
    """
    Look whether an event without choices is an error that is not under `error`: older vLLM's `{"object": "error", "message": ...}`.

    Raises:
        ApiError: it is one.
    """
    fields = None
    with contextlib.suppress(ValueError, RecursionError):  # it was mended to be read at all
        fields = msgspec.json.decode(event)
    if isinstance(fields, dict) and fields.get("object") == "error":
        raise error_from_stream(fields)


def token_logprob(token: chat_completions.TokenLogprob) -> engine_events.TokenLogprob:
    """A token's log probability and its alternatives', as a word has them."""
    alternatives = tuple(_likelihood(other) for other in token.top_logprobs or ())
    return engine_events.TokenLogprob(_likelihood(token), alternatives)


def _likelihood(token: chat_completions.TopLogprob) -> engine_events.TokenCandidate:
    given = token.bytes if token.bytes is not None else token.token.encode()
    return engine_events.TokenCandidate(token.token, IMPOSSIBLE_LOGPROB if token.logprob is None else token.logprob, tuple(given))


def _annotation(annotation: dict[str, Any]) -> dict[str, Any]:
    """A citation in the Responses API's shape: what chat completions nest under its type stands beside it there."""
    kind = annotation.get("type")
    nested = annotation.get(kind) if isinstance(kind, str) else None
    return {"type": kind, **nested} if isinstance(nested, dict) else annotation


def _usage(id: str, usage: chat_completions.Usage) -> engine_events.Usage:
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
    """A number of tokens, in which some servers have a fraction; that it can be one, `Usage` sees to."""
    return int(value or 0)
