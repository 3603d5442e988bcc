"""One answer of the embedded model: the rules it keeps to, and what is made of its tokens."""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import JsonObject, JsonSchema
from antiphon.engines.local import sampling
from antiphon.engines.local.json_schema import ANY_OBJECT, OutputSchema, UnusableSchema, invalid_schema
from antiphon.engines.local.llama_server import LlamaChunk, LlamaToken, LlamaTokenLogprob
from antiphon.engines.local.output_parser import ForcedCallParser, JsonFormatParser, OutputParser, TextParser, ToolCallDetector
from antiphon.engines.local.tool_grammar import GrammarTool, grammar
from antiphon.errors import ApiError, ServerError


class _CompletionReader:
    """Turns what the native server sends into words, as it comes."""

    def __init__(self, request: commands.Respond, parser: OutputParser, deliver: Deliver) -> None:
        self._request = request
        self._parser = parser
        self._deliver = deliver
        self._last_chunk = LlamaChunk()
        self.tokens: list[int] = []

    def feed(self, chunks: list[LlamaChunk]) -> bool:
        """Say what arrived; False once nothing more is needed."""
        words: list[events.EngineEvent] = []
        for chunk in chunks:
            self._last_chunk = chunk
            self.tokens += chunk.tokens
            words += self._parser.feed(chunk.content, self._logprobs(chunk.completion_probabilities))
        if words:
            self._deliver(words)
        return not self._parser.is_done

    def end_events(self) -> list[events.EngineEvent]:
        """The words that end the answer."""
        last, cut = self._last_chunk, self._last_chunk.stop_type == "limit"
        used = events.Usage(
            id=self._request.id,
            input_tokens=last.tokens_evaluated,
            output_tokens=last.tokens_predicted,
            cached_tokens=last.timings.cache_n if last.timings else 0,
        )
        return [*self._parser.finish(cut), used, events.ResponseEnded(self._request.id, "length" if cut else "stop")]

    def _logprobs(self, tokens: Sequence[LlamaTokenLogprob]) -> list[events.TokenLogprob]:
        if (wanted := self._request.sampling.top_logprobs) is None:
            return []
        # The token that ends the answer, like every other that only steers, has no bytes: it is no part of the text.
        said = (one for one in tokens if one.bytes)
        return [events.TokenLogprob(_likelihood(one), tuple(map(_likelihood, one.top_logprobs[:wanted]))) for one in said]


def _likelihood(token: LlamaToken) -> events.TokenCandidate:
    logprob = sampling.LOWEST_LOGPROB if token.logprob is None else max(token.logprob, sampling.LOWEST_LOGPROB)
    return events.TokenCandidate(token.token, logprob, token.bytes)


def _constrain_output(request: commands.Respond, tools: Sequence[GrammarTool]) -> tuple[OutputParser, dict[str, Any]]:
    """What reads the answer, and the constraint on it, as fields of the request."""
    rules: dict[str, Any] = {"timings_per_token": True} if tools else {}
    if tools and request.tool_choice.mode == "required":
        return ForcedCallParser(request.id, tools), rules | {"grammar": grammar(None, tools)}
    format, reader = _format_parser(request)
    if format is not None:
        rules["grammar"] = grammar(format, tools)
    if tools:
        return ToolCallDetector(request.id, tools, request.parallel_tool_calls, reader), rules
    return reader, rules


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
                raise invalid_schema(error, f"response_format '{name}'", "invalid_json_schema", "text.format.schema") from None
            return schema, JsonFormatParser(request.id, schema, strict)


def _server_failed_error(error: Exception) -> ServerError:
    return ServerError(f"The local model's server failed: {error}.")


def _response_failed(id: str, error: ApiError) -> events.ResponseFailed:
    broke = events.ResponseFailed.from_error(id, error)
    return broke if broke.code or broke.status < 500 else msgspec.structs.replace(broke, code="server_error")
