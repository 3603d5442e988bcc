"""Names in the configuration that must be those of models."""

from collections.abc import Iterator, Sequence

from antiphon.config.load import Config
from antiphon.config.rewrites import rewrite_problems
from antiphon.config.routing import routing_problems


def name_problems(config: Config, models: Sequence[str]) -> Iterator[str]:
    """The names in routes and rewrites that no model has; one line for each, with its place and key."""
    routes = [entry.name for entry in config.routing]
    for key, problem in (*routing_problems(config.routing, models), *rewrite_problems(config.rewrites, models, routes)):
        yield config.locate(key, f"{key}: {problem}")
