"""The engines of models as they are configured: with several upstreams, and with fallbacks."""

import re
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from antiphon.config.load import ModelEntry
from antiphon.engine_api.engine import Build, BuildContext, Engine, NullObserver, UpstreamObserver
from antiphon.errors import ServerError, did_you_mean, is_or_are
from antiphon.runtime.balancing.balanced_engine import BalancedEngine
from antiphon.runtime.balancing.fallback_engine import FallbackEngine, FindModel
from antiphon.runtime.balancing.options import (
    OWN_LIMIT_KEYS,
    BalanceOptions,
    UpstreamTable,
    engine_options,
    is_routed,
    parse_balance,
    parse_upstreams,
)
from antiphon.runtime.balancing.upstreams import ModelUpstream, RoutingObserver, UpstreamPool
from antiphon.runtime.core.engine_types import load_builder

FindBuilder = Callable[[str], Build]

_DEFAULT_QUEUE = 1024  # as `engines.upstream.client.UpstreamOptions` has them
_DEFAULT_QUEUE_S = 60.0


class NullRoutingObserver:
    """An observer that does nothing."""

    def on_upstream_state(self, name: str, state: str) -> None:
        pass

    def on_upstream_attempt(self, name: str, outcome: str) -> None:
        pass

    def on_upstream_choice(self, name: str, kind: str) -> None:
        pass

    def on_upstream_outstanding(self, name: str, count: int) -> None:
        pass

    def on_fallback(self, model: str, fallback: str, reason: str) -> None:
        pass


NULL_ROUTING_OBSERVER = NullRoutingObserver()


class _UpstreamErrors(NullObserver):
    """Takes the errors and mends of one upstream; its state is that of its breaker in the pool."""

    def __init__(self, name: str, observer: UpstreamObserver) -> None:
        self._name = name
        self._observer = observer

    def on_upstream_error(self, name: str, reason: str) -> None:
        self._observer.on_upstream_error(self._name, reason)

    def on_upstream_mend(self, name: str, kind: str) -> None:
        self._observer.on_upstream_mend(self._name, kind)


def build_engine(
    entry: ModelEntry,
    context: BuildContext,
    find: FindModel,
    observer: RoutingObserver = NULL_ROUTING_OBSERVER,
    find_builder: FindBuilder = load_builder,
) -> Engine:
    """
    The engine of a model, not yet started.

    Args:
        find: finds its fallbacks, once all are built.
        find_builder: loads what builds an engine of that name.

    Raises:
        ServerError: an option is unknown, missing or wrong.
    """
    if not is_routed(entry.options):
        return find_builder(entry.engine)(entry.name, entry.options, context)
    options = parse_balance(entry.name, entry.engine, entry.options)
    if "upstreams" in entry.options:
        engine = _build_balanced(entry, options, context, observer, find_builder)
    else:
        engine = find_builder(entry.engine)(entry.name, engine_options(entry.options), context)
    return FallbackEngine(entry.name, engine, options, find, observer) if options.fallback else engine


def _build_balanced(
    entry: ModelEntry, options: BalanceOptions, context: BuildContext, observer: RoutingObserver, find_builder: FindBuilder
) -> Engine:
    tables = parse_upstreams(entry.name, entry.options)
    if entry.engine == "chat" and len(tables) > 1:
        # Only a stream shows that its server is at work, and only what is held back of it can be begun again elsewhere.
        tables = [structs.replace(table, options={"always_stream": True} | table.options) for table in tables]
    upstreams = [
        ModelUpstream(
            entry.name, _build_upstream(entry, table, index, context, find_builder), table.limits, options, observer, time.monotonic
        )
        for index, table in enumerate(tables)
    ]
    max_waiting = max(int(table.options.get("queue", _DEFAULT_QUEUE)) for table in tables)
    timeout_s = max(float(table.options.get("timeout_queue_s", _DEFAULT_QUEUE_S)) for table in tables)
    always_stream = all(table.options.get("always_stream", False) for table in tables)
    return BalancedEngine(
        entry.name,
        UpstreamPool(upstreams, options, max_waiting, timeout_s),
        options,
        is_fixed_model=not entry.name.endswith("*") or all("model" in table.options for table in tables),
        streams_whole=entry.engine == "responses" or always_stream,
        streams_relays=always_stream,
    )


def _build_upstream(entry: ModelEntry, table: UpstreamTable, index: int, context: BuildContext, find_builder: FindBuilder) -> Engine:
    label = f"{entry.name}/{table.limits.name}"
    notice: Callable[[str], None] = lambda line: context.notice(f"Upstream '{table.limits.name}': {line}")  # noqa: E731
    own_context = structs.replace(
        context,
        observer=_UpstreamErrors(label, context.observer),
        notice=notice,
        has_alternatives=True,
        upstream_name=table.limits.name,
    )
    try:
        return find_builder(entry.engine)(entry.name, table.options, own_context)
    except ServerError as error:
        message = error.message.replace("are wrong: ", f"are wrong: in `upstreams[{index}]`: ", 1)
        error.message = _UNKNOWN_FIELD.sub(lambda match: match[0] + did_you_mean(match[1], OWN_LIMIT_KEYS), message)
        error.operator_message = error.message
        raise


_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`\.(?! Did you mean)")


def fallback_problems(entries: Sequence[ModelEntry]) -> list[tuple[str, str]]:
    """The name of each model with a fallback that is no model, or leads back to itself, and a sentence about it."""
    problems: list[tuple[str, str]] = []
    edges: dict[str, list[str]] = {}
    names = [entry.name for entry in entries]
    for entry in entries:
        edges[entry.name] = []
        # A value of another type is reported where the options are parsed.
        fallback = entry.options.get("fallback", ())
        for name in fallback if isinstance(fallback, list | tuple) else ():
            target = _configured_name(str(name), names)
            if target is None:
                hint = did_you_mean(str(name), names) or f" There {is_or_are(names)}."
                text = f"The options of model '{entry.name}' are wrong: `fallback` names '{name}', which is no model here.{hint}"
                problems.append((entry.name, text))
            else:
                edges[entry.name].append(target)
    return problems + [
        (circle[0], f"The options of model '{circle[0]}' are wrong: its `fallback` leads back to it: {' > '.join(circle)}.")
        for circle in _circles(edges)
    ]


def check_fallbacks(entries: Sequence[ModelEntry]) -> None:
    """
    Check that every fallback is a model, and none leads back to itself.

    Raises:
        ServerError: with a sentence for each mistake.
    """
    if problems := fallback_problems(entries):
        raise ServerError(" ".join(problem for _, problem in problems))


def _configured_name(name: str, names: Sequence[str]) -> str | None:
    """The configured name that a model's name leads to."""
    # A family (`qwen-*`) is no model that could be asked.
    if name in names or name.endswith("*"):
        return name if name in names and not name.endswith("*") else None
    families = [each for each in names if each.endswith("*") and name.startswith(each[:-1])]
    return max(families, key=len, default=None)


def _circles(edges: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The circles in the graph, each once, with its first name at the end again."""
    circles: dict[frozenset[str], list[str]] = {}
    visited_names: set[str] = set()

    def visit(path: list[str]) -> None:
        for target in edges[path[-1]]:
            if target in path:
                circle = path[path.index(target) :]
                # By its members: begun elsewhere, it is the same circle.
                circles.setdefault(frozenset(circle), [*circle, target])
            elif target not in visited_names:
                visit([*path, target])
        visited_names.add(path[-1])

    for name in edges:
        if name not in visited_names:
            visit([name])
    return list(circles.values())
