"""The rewrites of a server."""

from collections.abc import Callable, Sequence

from antiphon.config.rewrites import RewriteEntry
from antiphon.engine_api.engine import Engine
from antiphon.errors import ServerError
from antiphon.runtime.rewriting.engine import CountRewrite, RewritingEngine
from antiphon.runtime.rewriting.rewrites import FindModel, Rewrite
from antiphon.runtime.rewriting.rule_pool import RulePool


class Rewriter:
    """
    Puts rewrites around engines, for the answers that they are configured for.

    Args:
        find_model: the model of a name.
        has_model: whether there is a model of that name.
        count: counts each rewrite.

    Raises:
        ServerError: a rewrite names a model that there is not.
    """

    def __init__(
        self,
        entries: Sequence[RewriteEntry],
        find_model: FindModel,
        has_model: Callable[[str], bool],
        count: CountRewrite,
    ) -> None:
        for entry in entries:
            if entry.model is not None and not has_model(entry.model):
                raise ServerError(f"The rewrite '{entry.name}' is to be done by the model '{entry.model}', which is not configured.")
        self._rule_pool = RulePool()
        self._rewrites = [Rewrite(entry, self._rule_pool, find_model) for entry in entries]
        self._count = count

    def is_for(self, models: Sequence[str], key_id: str = "") -> bool:
        """Whether any rewrite is for the answers of a model, under any of its names, to the client with that key."""
        return any(rewrite.is_for(models, key_id) for rewrite in self._rewrites)

    def around(
        self, engine: Engine, models: Sequence[str], key_id: str = "", *, replaces: bool = False, only_response_id: str | None = None
    ) -> Engine:
        """
        The engine, with the rewrites around it that are for the answers of its model.

        Args:
            models: the names of the model: the one that was asked for, and the one that answers to it.
            key_id: of the client's key; empty if it has none.
            replaces: whether the protocol can tell its client a text in the place of one that was sent. Only then are
                drafts sent, where the configuration says so.
            only_response_id: the id of the one response to rewrite; None for all.
        """
        rewrites = [rewrite for rewrite in self._rewrites if rewrite.is_for(models, key_id)]
        return (
            RewritingEngine(engine, rewrites, replaces=replaces, only_response_id=only_response_id, count=self._count)
            if rewrites
            else engine
        )

    async def stop(self) -> None:
        """End the processes of rules; idempotent."""
        await self._rule_pool.stop()
