"""One response of the embedded model: the constraint on its output, and the events made of its tokens."""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import JsonObject, JsonSchema
from antiphon.engines.local import sampling
from antiphon.engines.local.json_schema import ANY_OBJECT, OutputSchema, UnusableSchema
from antiphon.engines.local.llama_server import LlamaChunk, LlamaToken, LlamaTokenLogprob
from antiphon.engines.local.output_parser import ForcedCallParser, JsonFormatParser, OutputParser, TextParser, ToolCallDetector
from antiphon.engines.local.tool_grammar import GrammarTool, grammar
from antiphon.errors import ApiError, ServerError, invalid_schema


class CompletionReader:
    """Turns the native server's chunks into engine events."""

    def __init__(self, request: commands.Respond, parser: OutputParser, deliver: Deliver, cached_tokens: int = 0) -> None:
        self._request = request
        self._parser = parser
        self._deliver = deliver
        self._cached_tokens = cached_tokens
        self._last_chunk = LlamaChunk()
        self.tokens: list[int] = []

    def feed(self, chunks: list[LlamaChunk]) -> bool:
        """Deliver the events of these chunks; returns false once no more output is needed."""
        batch: list[events.EngineEvent] = []
        for chunk in chunks:
            self._last_chunk = chunk
            self.tokens += chunk.tokens
            batch += self._parser.feed(chunk.content, self._logprobs(chunk.completion_probabilities))
        if batch:
            self._deliver(batch)
        return not self._parser.is_done

    def end_events(self) -> list[events.EngineEvent]:
        """The events that end the response."""
        last, is_truncated = self._last_chunk, self._last_chunk.stop_type == "limit"
        usage = events.Usage(
            id=self._request.id,
            input_tokens=last.tokens_evaluated,
            output_tokens=last.tokens_predicted,
            # The server also counts what `LocalEngine` had it process of this very prompt before.
            cached_tokens=min(self._cached_tokens, last.timings.cache_n if last.timings else 0),
        )
        stop_sequence = last.stopping_word if last.stop_type == "word" else None
        end = events.ResponseEnded(self._request.id, "length" if is_truncated else "stop", stop_sequence or None)
        return [*self._parser.finish(is_truncated), usage, end]

    def _logprobs(self, tokens: Sequence[LlamaTokenLogprob]) -> list[events.TokenLogprob]:
        if (limit := self._request.sampling.top_logprobs) is None:
            return []
        # Control tokens, such as the one that ends the response, have no bytes, and are no part of the text.
        return [events.TokenLogprob(_candidate(one), tuple(map(_candidate, one.top_logprobs[:limit]))) for one in tokens if one.bytes]


def _candidate(token: LlamaToken) -> events.TokenCandidate:
    logprob = sampling.LOWEST_LOGPROB if token.logprob is None else max(token.logprob, sampling.LOWEST_LOGPROB)
    return events.TokenCandidate(token.token, logprob, token.bytes)


def constrain_output(request: commands.Respond, tools: Sequence[GrammarTool]) -> tuple[OutputParser, dict[str, Any]]:
    """The parser of the output, and the constraint on it, as fields of the completion request."""
    fields: dict[str, Any] = {"timings_per_token": True} if tools else {}
    if tools and request.tool_choice.mode == "required":
        return ForcedCallParser(request.id, tools), fields | {"grammar": grammar(None, tools)}
    format, parser = _format_parser(request)
    if format is not None:
        fields["grammar"] = grammar(format, tools)
    if tools:
        return ToolCallDetector(request.id, tools, request.parallel_tool_calls, parser), fields
    return parser, fields


def _format_parser(request: commands.Respond) -> tuple[OutputSchema | None, TextParser]:
    match request.format:
        case None:
            return None, TextParser(request.id)
        case JsonObject():
            return ANY_OBJECT, JsonFormatParser(request.id, ANY_OBJECT, strict=False)
        case JsonSchema(name=name, schema=source, strict=strict):
            try:
                schema = OutputSchema(source, strict)
            except UnusableSchema as error:
                raise invalid_schema(str(error), f"response_format '{name}'", "invalid_json_schema", "text.format.schema") from None
            return schema, JsonFormatParser(request.id, schema, strict)


def server_failed_error(error: Exception) -> ServerError:
    """The error for a native server that is gone, or sends nonsense."""
    return ServerError(f"The local model's server failed: {error}.")


def response_failed(id: str, error: ApiError) -> events.ResponseFailed:
    """The last event of a response that failed; a failure of ours always has a code."""
    event = events.ResponseFailed.from_error(id, error)
    return event if event.code or event.status < 500 else msgspec.structs.replace(event, code="server_error")
