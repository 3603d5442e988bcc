"""The settings of a model with several upstreams, and of one with fallbacks."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from antiphon.engine_api.model_options import convert_options
from antiphon.errors import ServerError, quote_list
from antiphon.runtime.balancing.failures import FallbackReason

BALANCED_ENGINES = ("chat", "responses")
"""Engines that may have several upstreams, or fallbacks: each of their requests is one by itself."""

MAX_UPSTREAMS = 256
DEFAULT_FLOOR = 4
DEFAULT_CONCURRENCY = 256  # as `engines.upstream.client.UpstreamOptions` has it

_ENGINE_DEFAULTS: dict[str, object] = {"concurrency": DEFAULT_CONCURRENCY, "failures": 5, "rest_s": 10.0}


class BalanceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    How requests are spread over a model's upstreams, and which other models may answer.

    Attributes:
        balance: whether requests of a conversation go to the same upstream where it has room, or always to the one with
            the least to do.
        affinity_factor: how much more than its part of the load an upstream may have before its conversations go
            elsewhere.
        failover_after_s: how long an upstream may say nothing before another one is asked that has room.
        retry_budget: the tries beyond the first, as a share of the requests of the last ten seconds.
        slow_start_s: how long an upstream that is well again gets less than its part.
        fallback: the names of other models that may answer, in order.
        fallback_on: why they are asked.
    """

    balance: Literal["affinity", "least_outstanding"] = "affinity"
    # In a simulation the first token had a p99 of 4 s with it, and of 116 s without a bound (docs/decisions/0037).
    affinity_factor: float = 1.25
    failover_after_s: float = 30.0
    retry_budget: float = 0.2
    slow_start_s: float = 20.0
    fallback: tuple[str, ...] = ()
    fallback_on: tuple[FallbackReason, ...] = ("overload", "context", "feature")

    def problems(self) -> Iterator[str]:
        """A sentence for each value that is out of range."""
        if not 1 < self.affinity_factor < math.inf:
            yield "`affinity_factor` must be more than 1, and a number."
        if not 0 < self.failover_after_s < math.inf:
            yield "`failover_after_s` must be more than 0, and a number."
        if not 0 <= self.retry_budget <= 10 or not 0 <= self.slow_start_s < math.inf:
            yield "`retry_budget` must be from 0 to 10, `slow_start_s` at least 0."
        if duplicates := [name for name, count in Counter(self.fallback).items() if count > 1]:
            yield f"`fallback` names {quote_list(duplicates)} more than once."


class UpstreamLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What one of several upstreams gets. Rates are those of one server process.

    Attributes:
        name: for operators, and for clients where `server.upstream_header` is set; `upstream-1` and so on where none is given.
        weight: its share of the load, in proportion to the others'.
        requests_per_minute: the most that it gets.
        tokens_per_minute: the most that it gets, input and output together.
        affinity_floor: up to so many requests at once it takes its conversations in any case.
        concurrency: the most requests at once; this, `failures` and `rest_s` are as the engine has them.
    """

    name: str = ""
    weight: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    affinity_floor: int = DEFAULT_FLOOR
    concurrency: int = DEFAULT_CONCURRENCY
    failures: int = 5
    rest_s: float = 10.0

    def problems(self) -> Iterator[str]:
        """A sentence for each value that is out of range."""
        if not 0 < self.weight < math.inf:
            yield "`weight` must be more than 0, and a number."
        rates = [rate for rate in (self.requests_per_minute, self.tokens_per_minute) if rate is not None]
        if any(rate < 1 for rate in rates) or self.affinity_floor < 1:
            yield "`requests_per_minute`, `tokens_per_minute` and `affinity_floor` must be at least 1."
        if not 0 < len(self.name) <= 64 or not self.name.isascii() or not self.name.isprintable():
            yield "`name` must be 1 to 64 ASCII characters."


class UpstreamTable(Struct, frozen=True):
    """One of a model's upstreams: what it gets, and the options of the engine in front of it."""

    limits: UpstreamLimits
    options: dict[str, Any]


_BALANCE_KEYS = frozenset(BalanceOptions.__struct_fields__)
_LIMIT_KEYS = frozenset(UpstreamLimits.__struct_fields__)
OWN_LIMIT_KEYS = _LIMIT_KEYS - _ENGINE_DEFAULTS.keys()
"""The keys of an upstream's table that its engine does not have."""


def is_routed(options: Mapping[str, Any]) -> bool:
    """Whether a model's table has several upstreams, or fallbacks."""
    return "upstreams" in options or bool(_BALANCE_KEYS & options.keys())


def engine_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What is left for the engine of a model's table."""
    return {key: value for key, value in options.items() if key not in _BALANCE_KEYS and key != "upstreams"}


def parse_balance(model: str, engine: str, options: Mapping[str, Any]) -> BalanceOptions:
    """
    How the requests of a model are spread.

    Raises:
        ServerError: an option is wrong, or the engine can't have it.
    """
    prefix = f"The options of model '{model}' are wrong: "
    own = {key: value for key, value in options.items() if key in _BALANCE_KEYS}
    if engine not in BALANCED_ENGINES:
        name = "upstreams" if "upstreams" in options else min(own)
        raise ServerError(f"{prefix}`{name}` is for the engines {quote_list(BALANCED_ENGINES)}.")
    balance = convert_options(own, BalanceOptions, prefix)
    if problems := [*balance.problems()]:
        raise ServerError(prefix + " ".join(problems))
    return balance


def parse_upstreams(model: str, options: Mapping[str, Any]) -> list[UpstreamTable]:
    """
    The upstreams of a model, each with the keys of the model's table that its own does not have.

    Raises:
        ServerError: one of them is wrong; says which.
    """
    prefix = f"The options of model '{model}' are wrong: "
    tables = options["upstreams"]
    if not isinstance(tables, list) or not 0 < len(tables) <= MAX_UPSTREAMS or not all(isinstance(table, dict) for table in tables):
        raise ServerError(f"{prefix}`upstreams` must be an array of 1 to {MAX_UPSTREAMS} tables, each with a `base_url`.")
    if "base_url" in options:
        raise ServerError(f"{prefix}`base_url` stands in each of `upstreams`, not beside them.")
    common_options = engine_options(options)
    if extra_names := sorted({"name"} & common_options.keys()):
        raise ServerError(f"{prefix}{quote_list(extra_names)} stands in each of `upstreams`.")
    names = _names(tables)
    if duplicates := [name for name, count in Counter(names).items() if count > 1]:
        raise ServerError(f"{prefix}more than one of `upstreams` is named {quote_list(duplicates)}.")
    return [
        _parse_upstream(common_options | table, name, f"{prefix}in `upstreams[{index}]`, ")
        for index, (table, name) in enumerate(zip(tables, names, strict=True))
    ]


def _parse_upstream(table: Mapping[str, Any], name: str, prefix: str) -> UpstreamTable:
    if extra_keys := sorted(key for key in table if key in _BALANCE_KEYS or key == "upstreams"):
        raise ServerError(f"{prefix}{quote_list(extra_keys)} can't stand: it is for all upstreams of the model.")
    own = {key: value for key, value in table.items() if key in _LIMIT_KEYS} | {"name": name}
    if isinstance(table.get("concurrency"), int):
        own.setdefault("affinity_floor", table["concurrency"])  # so many it computes at once
    limits = convert_options(own, UpstreamLimits, prefix)
    if problems := [*limits.problems()]:
        raise ServerError(prefix + " ".join(problems))
    return UpstreamTable(limits, {key: value for key, value in table.items() if key not in OWN_LIMIT_KEYS})


def _names(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(table.get("name", f"upstream-{number}")) for number, table in enumerate(tables, start=1)]
