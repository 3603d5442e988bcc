"""`antiphon workers`: list, drain, remove."""

from urllib.parse import quote

from cyclopts import App

from antiphon.cli import own
from antiphon.cli.flags import Around, ConfigFile, Json, Url

_HELP = """
See what has places with the models, and take some of it out of service.

A running server knows: the one configured, or the one that --url names.

Try:
    antiphon workers list
    antiphon workers drain minicpm-o-1
"""

_PATH = "/workers"


def verbs() -> App:
    """`workers` and what can be done with them."""
    app = App(name="workers", help=_HELP)
    app.command(list_, name="list")
    app.command(drain)
    app.command(remove)
    return app


def list_(*, as_json: Json = False, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    List the workers.

    Try:
        antiphon workers list
        antiphon workers list --json
    """
    workers = own.running(shell, url, file).get(_PATH)["workers"]
    if as_json:
        return shell.say_json(workers)
    if not workers:
        return shell.note("there are no workers")
    rows = [
        (one["worker_id"], one["model"], one["status"], _taken(one), str(one["total_requests"]), one["address"] or "-") for one in workers
    ]
    return shell.say_rows([("WORKER", "MODEL", "STATE", "TAKEN", "SERVED", "ADDRESS"), *rows])


def drain(worker: str, /, *, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    Give no more places with a worker; conversations under way go on.

    Try:
        antiphon workers drain minicpm-o-1

    Args:
        worker: the id.
    """
    found = own.running(shell, url, file).post(f"{_PATH}/{quote(worker, safe='')}/drain", {})
    shell.note(f"{worker} gets nobody more; it has {found['taken']} now")


def remove(worker: str, /, *, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    Forget a worker; conversations under way go on.

    Try:
        antiphon workers remove minicpm-o-1

    Args:
        worker: the id.
    """
    own.running(shell, url, file).delete(f"{_PATH}/{quote(worker, safe='')}")
    shell.note(f"removed {worker}")


def _taken(worker: dict[str, object]) -> str:
    return f"{worker['taken']} of {worker['slots'] or 'any'}"
