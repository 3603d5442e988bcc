"""One answer of the embedded model: the rules it keeps to, and what is made of its tokens."""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import JsonObject, JsonSchema
from antiphon.engines.local import sampling
from antiphon.engines.local.json_schema import ANY_OBJECT, Schema, Unfit, invalid_schema
from antiphon.engines.local.llama_server import Chosen, Chunk, Likely
from antiphon.engines.local.output_parser import ForcedReader, FormatReader, PlainReader, Reader, SniffingReader
from antiphon.engines.local.tool_grammar import Offer, grammar
from antiphon.errors import Fault, OurFault


class _Listener:
    """Turns what the native server sends into words, as it comes."""

    def __init__(self, ask: commands.Respond, reader: Reader, say: Deliver) -> None:
        self._ask = ask
        self._reader = reader
        self._say = say
        self._last = Chunk()
        self.tokens: list[int] = []

    def take(self, chunks: list[Chunk]) -> bool:
        """Say what arrived; False once nothing more is needed."""
        words: list[talk_events.FromEngine] = []
        for chunk in chunks:
            self._last = chunk
            self.tokens += chunk.tokens
            words += self._reader.read(chunk.content, self._logprobs(chunk.completion_probabilities))
        if words:
            self._say(words)
        return not self._reader.done

    def ending(self) -> list[talk_events.FromEngine]:
        """The words that end the answer."""
        last, cut = self._last, self._last.stop_type == "limit"
        used = talk_events.Used(
            id=self._ask.id,
            input_tokens=last.tokens_evaluated,
            output_tokens=last.tokens_predicted,
            cached_tokens=last.timings.cache_n if last.timings else 0,
        )
        return [*self._reader.finish(cut), used, talk_events.Ended(self._ask.id, "length" if cut else "stop")]

    def _logprobs(self, chosen: Sequence[Chosen]) -> list[talk_events.TokenLogprob]:
        if (wanted := self._ask.sampling.top_logprobs) is None:
            return []
        # The token that ends the answer, like every other that only steers, has no bytes: it is no part of the text.
        said = (one for one in chosen if one.bytes)
        return [talk_events.TokenLogprob(_likelihood(one), tuple(map(_likelihood, one.top_logprobs[:wanted]))) for one in said]


def _likelihood(one: Likely) -> talk_events.Likelihood:
    logprob = sampling.LOWEST_LOGPROB if one.logprob is None else max(one.logprob, sampling.LOWEST_LOGPROB)
    return talk_events.Likelihood(one.token, logprob, one.bytes)


def _held_to(ask: commands.Respond, held: Sequence[Offer]) -> tuple[Reader, dict[str, Any]]:
    """What reads the answer, and the constraint on it, as fields of the request."""
    rules: dict[str, Any] = {"timings_per_token": True} if held else {}
    if held and ask.tool_choice.mode == "required":
        return ForcedReader(ask.id, held), rules | {"grammar": grammar(None, held)}
    format, reader = _format(ask)
    if format is not None:
        rules["grammar"] = grammar(format, held)
    if held:
        return SniffingReader(ask.id, held, ask.parallel_tool_calls, reader), rules
    return reader, rules


def _format(ask: commands.Respond) -> tuple[Schema | None, PlainReader]:
    match ask.format:
        case None:
            return None, PlainReader(ask.id)
        case JsonObject():
            return ANY_OBJECT, FormatReader(ask.id, ANY_OBJECT, strict=False)
        case JsonSchema(name=name, schema=source, strict=strict):
            try:
                schema = Schema(source, strict)
            except Unfit as error:
                raise invalid_schema(error, f"response_format '{name}'", "invalid_json_schema", "text.format.schema") from None
            return schema, FormatReader(ask.id, schema, strict)


def _failed(error: Exception) -> OurFault:
    return OurFault(f"The local model's server failed: {error}.")


def _broke(id: str, fault: Fault) -> talk_events.Broke:
    broke = talk_events.Broke.by(id, fault)
    return broke if broke.code or broke.status < 500 else msgspec.structs.replace(broke, code="server_error")
