"""A streamed chat completion, in the engine's words."""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.engine_api import events as talk_events
from antiphon.engine_api.options import Tool
from antiphon.engines.chat.tool_calls import Calls
from antiphon.engines.upstream.faults import said_midway
from antiphon.errors import UpstreamTrouble, shown
from antiphon.wire.codec.repair import mended
from antiphon.wire.upstream import chat_completions as chat

REASONS: dict[str, talk_events.EndReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
}
"""Why an answer ended, where it is not that all was said (`stop`, `tool_calls`, `function_call`, and what we know nothing of)."""

IMPOSSIBLE = -9999.0
"""The log probability of what can't be, as vLLM and OpenAI's API give it."""

FAILED = frozenset({"error", "abort", "network_error"})
"""Reasons of servers that say of a failure that the answer is finished."""


_NOTHING_ELSE = chat.Chunk(choices=[chat.Choice(delta=chat.Delta())])


class ChatReading:
    """
    The reading of one answer.

    Args:
        id: of the response.
        offered: the tools by the names that the server was given.
    """

    def __init__(self, id: str, offered: Mapping[str, Tool]) -> None:
        self._id = id
        self._calls = Calls(id, offered)
        self._finish_reason: str | None = None
        self._usage: chat.Usage | None = None

    def read(self, events: list[bytes], words: list[talk_events.FromEngine]) -> bool:
        """Add what `events` say; whether the answer is over."""
        for event in events:
            try:
                chunk = chat.decode_chunk(event)
            except (ValueError, RecursionError) as error:
                if not event:
                    continue
                if event.strip() == chat.DONE:
                    return self._end(words)
                _, chunk = mended(event, chat.decode_chunk, error, "chat completion")
            choices = chunk.choices
            if choices and (delta := choices[0].delta) is not None and type(content := delta.content) is str and content:
                # Nearly every chunk is a piece of text and nothing else: what is left without it is then a chunk of nothing.
                delta.content = None
                if chunk == _NOTHING_ELSE:
                    words.append(talk_events.Text(self._id, content))
                    continue
                delta.content = content
            elif choices is None and chunk.usage is None and not chunk.error:
                _check_fault(event)
            self._read_slowly(chunk, words)
        return False

    def finish(self, words: list[talk_events.FromEngine]) -> bool:
        """Nothing more comes: the end, if the server had said that the answer was finished."""
        return self._finish_reason is not None and self._end(words)

    def _end(self, words: list[talk_events.FromEngine]) -> bool:
        reason = REASONS.get(self._finish_reason or "", "stop")
        self._calls.close(words, is_whole=reason == "stop")
        if (usage := self._usage) is not None:
            words.append(_used(self._id, usage))
        words.append(talk_events.Ended(self._id, reason))
        return True

    def _read_slowly(self, chunk: chat.Chunk, words: list[talk_events.FromEngine]) -> None:
        if chunk.error:
            raise said_midway(chunk.error)
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            delta = choice.delta or choice.message
            if not choice.index and delta is not None:
                self._read_delta(delta, choice.logprobs, words, is_whole=delta is choice.message)
            if choice.message is not None and not choice.finish_reason:
                self._finish_reason = self._finish_reason or "stop"  # a message comes whole, also where the server forgot to say so
            if choice.finish_reason:
                self._finish_reason = choice.finish_reason
                if choice.finish_reason in FAILED:
                    raise UpstreamTrouble(f"The model server gave up in the middle of its answer ('{shown(choice.finish_reason)}').")

    def _read_delta(
        self, delta: chat.Delta, logprobs: chat.Logprobs | None, words: list[talk_events.FromEngine], *, is_whole: bool
    ) -> None:
        id = self._id
        # Some servers say the same under both names, for clients that know only one.
        reasoning = delta.reasoning_content or delta.reasoning
        if isinstance(reasoning, str) and reasoning:
            words.append(talk_events.Reasoning(id, reasoning))
        text = delta.content if isinstance(delta.content, str) else self._read_parts(delta.content or (), words)
        tokens = tuple(likely(token) for token in logprobs.content or ()) if logprobs is not None else ()
        if text or tokens:
            words.append(talk_events.Text(id, text, tokens))
        if delta.refusal:
            words.append(talk_events.Refusal(id, delta.refusal))
        for annotation in delta.annotations or ():
            words.append(talk_events.Annotated(id, _annotation(annotation)))
        for call in delta.tool_calls or ():
            self._calls.take(call, words)
            if is_whole:
                self._calls.close(words)
        if delta.function_call is not None:
            self._calls.take(chat.ToolCall(index=0, function=delta.function_call), words)

    def _read_parts(self, parts: Any, words: list[talk_events.FromEngine]) -> str:
        """The text of content that came as parts; Mistral's reasoning models send such, with their thinking among them."""
        texts: list[str] = []
        for part in parts:
            if not isinstance(part, dict):
                continue
            thinking = part.get("thinking")
            if isinstance(thinking, list) and (thought := self._read_parts(thinking, words)):
                words.append(talk_events.Reasoning(self._id, thought))
            if isinstance(part.get("text"), str):
                texts.append(part["text"])
        return "".join(texts)


def _check_fault(event: bytes) -> None:
    """
    Look whether an event without choices is an error that is not under `error`: older vLLM's `{"object": "error", "message": ...}`.

    Raises:
        Fault: it is one.
    """
    fields = None
    with contextlib.suppress(ValueError, RecursionError):  # it was mended to be read at all
        fields = msgspec.json.decode(event)
    if isinstance(fields, dict) and fields.get("object") == "error":
        raise said_midway(fields)


def likely(token: chat.TokenLogprob) -> talk_events.TokenLogprob:
    """A token's log probability and its alternatives', as a word has them."""
    alternatives = tuple(_likelihood(other) for other in token.top_logprobs or ())
    return talk_events.TokenLogprob(_likelihood(token), alternatives)


def _likelihood(token: chat.Likelihood) -> talk_events.Likelihood:
    given = token.bytes if token.bytes is not None else token.token.encode()
    return talk_events.Likelihood(token.token, IMPOSSIBLE if token.logprob is None else token.logprob, tuple(given))


def _annotation(annotation: dict[str, Any]) -> dict[str, Any]:
    """A citation in the Responses API's shape: what chat completions nest under its type stands beside it there."""
    kind = annotation.get("type")
    nested = annotation.get(kind) if isinstance(kind, str) else None
    return {"type": kind, **nested} if isinstance(nested, dict) else annotation


def _used(id: str, usage: chat.Usage) -> talk_events.Used:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    reasoning = completion.reasoning_tokens if completion is not None else usage.reasoning_tokens
    return talk_events.Used(
        id=id,
        input_tokens=count(usage.prompt_tokens),
        output_tokens=count(usage.completion_tokens),
        cached_tokens=count(prompt.cached_tokens if prompt is not None else 0),
        reasoning_tokens=count(reasoning),
    )


def count(told: float | None) -> int:
    """A number of tokens, in which some servers have a fraction; that it can be one, `Used` sees to."""
    return int(told or 0)
