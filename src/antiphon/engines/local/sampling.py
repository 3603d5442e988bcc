"""Sampling options, as the native server's fields."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from antiphon.engine_api.options import Sampling
from antiphon.errors import ClientError, unsupported_parameter

MAX_LOGPROBS = 20
NATIVE_DEFAULTS: Mapping[str, float] = {"temperature": 0.8, "top_p": 0.95}
"""llama.cpp's own defaults; sent explicitly, so that a response can report what it was sampled with."""
# What OpenAI's API reports for a token that is practically impossible.
LOWEST_LOGPROB = -9999.0

_COMMON_FIELDS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


class _Extra(Struct, frozen=True, omit_defaults=True):
    """The fields outside the API that this engine supports; the rest of `Sampling.extra` is ignored."""

    seed: Annotated[int, Meta(ge=0, lt=2**32)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=16)] | None = None


def request_fields(sampling: Sampling, defaults: Mapping[str, float]) -> dict[str, Any]:
    """
    The fields of a completion request.

    Args:
        defaults: recommended for the model, where the client sets nothing.

    Raises:
        ClientError: `seed`, `top_k`, `min_p` or `stop` has a wrong type or value, or there is a `logit_bias`.
    """
    common = {name: value for name in _COMMON_FIELDS if (value := getattr(sampling, name)) is not None}
    fields: dict[str, Any] = {**defaults, **common, **_extra(sampling.extra), "n_predict": sampling.max_tokens or -1}
    if sampling.top_logprobs is not None:
        fields["n_probs"] = max(1, sampling.top_logprobs)
    return fields


def _extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    if extra.get("logit_bias"):
        # Its keys are numbers of tokens, and clients count them with the original's tokenizer.
        raise unsupported_parameter("logit_bias", None)
    fields: dict[str, Any] = {}
    for name in _Extra.__struct_fields__:
        try:
            fields |= msgspec.to_builtins(msgspec.convert({name: extra.get(name)}, _Extra))
        except msgspec.ValidationError as error:
            raise ClientError(f"Invalid value for '{name}': {error}.", code="invalid_value", param=name) from None
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    return fields
