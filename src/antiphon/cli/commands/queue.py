"""`antiphon queue`: list, cancel."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from cyclopts import App

from antiphon.cli.common import server
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter, UrlFlag

_HELP = """
See who waits for a model of which there are few, and cancel tickets.

A running server has them: the one configured, or the one that --url names.

Try:
    antiphon queue list
    antiphon queue cancel q_68af0c1d2e3f
"""

_PATH = "/api/queue"

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def build_app() -> App:
    """`queue` and what can be done with it."""
    app = App(name="queue", help=_HELP)
    app.command(list_, name="list")
    app.command(cancel)
    return app


def list_(*, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List those who wait, in their order, and those who are served.

    PLACE is the position, or the worker that serves; FOR is how long it has been
    so; ETA is how long until there is a place, where that can be said.

    Try:
        antiphon queue list
        antiphon queue list --json
    """
    queue = server.find_server(shell, url, file).get(_PATH)
    if as_json:
        return shell.say_json(queue)
    tickets = [*queue["items"], *queue["running_tasks"]]
    if not tickets:
        return shell.note("nobody waits, and nobody is served")
    rows = [
        (
            one["ticket_id"],
            one["model"],
            one["kind"],
            _format_position(one),
            format_age(_status_since(one), queue["now"]),
            _format_wait(one),
            one["key_id"] or "-",
        )
        for one in tickets
    ]
    return shell.say_rows([("TICKET", "MODEL", "KIND", "PLACE", "FOR", "ETA", "KEY"), *rows])


def cancel(ticket: str, /, *, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Have a ticket wait no longer; whoever waits is told.

    Try:
        antiphon queue cancel q_68af0c1d2e3f

    Args:
        ticket: the id.
    """
    server.find_server(shell, url, file).delete(f"{_PATH}/{quote(ticket, safe='')}")
    shell.note(f"cancelled {ticket}")


def format_duration(seconds: float) -> str:
    """So many seconds, for people: in one unit."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def format_age(at: float, now: float) -> str:
    """How long ago that was, by the same clock."""
    return format_duration(now - at)


def _status_since(ticket: Mapping[str, Any]) -> float:
    began: float = ticket["enqueued_at"] if ticket["status"] == "queued" else ticket["started_at"]
    return began


def _format_position(ticket: Mapping[str, Any]) -> str:
    return f"{ticket['position']}." if ticket["status"] == "queued" else f"with {ticket['worker_id']}"


def _format_wait(ticket: Mapping[str, Any]) -> str:
    wait_s = ticket["estimated_wait_s"]
    return "-" if wait_s is None else format_duration(wait_s)
