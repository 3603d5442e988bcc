"""`antiphon queue`: list, cancel."""

from urllib.parse import quote

from cyclopts import App

from antiphon.cli import own
from antiphon.cli.flags import Around, ConfigFile, Json, Url

_HELP = """
See who waits for a model of which there are few, and cancel tickets.

A running server has them: the one configured, or the one that --url names.

Try:
    antiphon queue list
    antiphon queue cancel q_68af0c1d2e3f
"""

_PATH = "/api/queue"


def verbs() -> App:
    """`queue` and what can be done with it."""
    app = App(name="queue", help=_HELP)
    app.command(list_, name="list")
    app.command(cancel)
    return app


def list_(*, as_json: Json = False, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    List those who wait, in their order, and those who are served.

    Try:
        antiphon queue list
        antiphon queue list --json
    """
    queue = own.running(shell, url, file).get(_PATH)
    if as_json:
        return shell.say_json(queue)
    tickets = [*queue["items"], *queue["running_tasks"]]
    if not tickets:
        return shell.note("nobody waits, and nobody is served")
    rows = [(one["ticket_id"], one["model"], one["kind"], _place(one), _wait(one), one["key_id"] or "-") for one in tickets]
    return shell.say_rows([("TICKET", "MODEL", "KIND", "PLACE", "WAIT", "KEY"), *rows])


def cancel(ticket: str, /, *, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    Have a ticket wait no longer; whoever waits is told.

    Try:
        antiphon queue cancel q_68af0c1d2e3f

    Args:
        ticket: the id.
    """
    own.running(shell, url, file).delete(f"{_PATH}/{quote(ticket, safe='')}")
    shell.note(f"cancelled {ticket}")


def _place(ticket: dict[str, object]) -> str:
    return f"{ticket['position']}." if ticket["status"] == "queued" else f"with {ticket['worker_id']}"


def _wait(ticket: dict[str, object]) -> str:
    wait_s = ticket["estimated_wait_s"]
    return "-" if wait_s is None else f"{wait_s:.0f} s"
