"""Runs the migrations. Alembic takes 100 ms to load and few starts need it, so this is loaded when a migration is due."""

from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationStep, RevisionStep
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection

_MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(connection: Connection) -> str:
    """
    Run the migrations that the tables lack, all of them where there are none.

    Returns:
        The schema of the oldest server that may use the tables now.
    """
    scripts = ScriptDirectory(_MIGRATIONS, version_locations=[_MIGRATIONS])

    def steps(current: tuple[str, ...], _context: MigrationContext) -> list[RevisionStep]:
        ahead = [*scripts.iterate_revisions("heads", current, implicit_base=True)]
        return [MigrationStep.upgrade_from_script(scripts.revision_map, revision) for revision in reversed(ahead)]

    context = MigrationContext.configure(connection, opts={"fn": steps})
    with Operations.context(context):
        context.run_migrations()
    # The strictest of all migrations counts, not that of the latest.
    return max(map(_oldest_server, scripts.walk_revisions()))


def _oldest_server(script: Script) -> str:
    """
    The schema of the oldest server that may use the tables after a migration.

    A migration that only adds what older servers can ignore says so with `oldest_server`.
    """
    oldest: str = getattr(script.module, "oldest_server", script.revision)
    return oldest
