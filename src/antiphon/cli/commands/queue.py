"""`antiphon queue`: list, cancel."""

from cyclopts import App

from antiphon.cli.common import server
from antiphon.cli.common.client import path_segment
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter, UrlFlag
from antiphon.wire.http.queue import QueueStatus

app = App(
    name="queue",
    help="""
See who waits for a busy model, and cancel tickets.

It asks a running server: the configured one, or the one that --url names.

Try:
    antiphon queue list
    antiphon queue cancel q_68af0c1d2e3f
""",
)

_ID_NAME = "A ticket's id"
_PATH = "/api/queue"

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


@app.command(name="list")
def list_(*, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the tickets that wait, in order, and those being served.

    PLACE is the position in the queue, or the worker that serves the ticket;
    FOR is for how long; ETA is the estimated wait, if there is an estimate.

    Try:
        antiphon queue list
        antiphon queue list --json
    """
    queue = server.find_server(shell, url, file).read(_PATH, QueueStatus)
    if as_json:
        return shell.say_json(queue)
    tickets = [*queue.items, *queue.running_tasks]
    if not tickets:
        return shell.note("no ticket waits, and none is being served")
    rows = [
        (
            ticket.ticket_id,
            ticket.model,
            ticket.kind,
            f"{ticket.position}." if ticket.status == "queued" else f"with {ticket.worker_id}",
            format_age(ticket.enqueued_at if ticket.started_at is None else ticket.started_at, queue.now),
            "-" if ticket.estimated_wait_s is None else format_duration(ticket.estimated_wait_s),
            ticket.key_id or "-",
        )
        for ticket in tickets
    ]
    return shell.say_rows([("TICKET", "MODEL", "KIND", "PLACE", "FOR", "ETA", "KEY"), *rows])


@app.command
def cancel(ticket: str, /, *, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Take a ticket out of the queue; its session ends with an error.

    Try:
        antiphon queue cancel q_68af0c1d2e3f

    Args:
        ticket: the id.
    """
    server.find_server(shell, url, file).delete(f"{_PATH}/{path_segment(_ID_NAME, ticket)}")
    shell.note(f"cancelled {ticket}")


def format_duration(seconds: float) -> str:
    """A duration in its largest fitting unit."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def format_age(at: float, now: float) -> str:
    """How long ago `at` was; both times by the same clock."""
    return format_duration(now - at)
