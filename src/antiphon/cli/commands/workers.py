"""`antiphon workers`: list, show, drain, resume, remove."""

import time
from collections.abc import Iterator, Sequence

import msgspec
from cyclopts import App

from antiphon.cli.commands.queue import format_age, format_duration
from antiphon.cli.common import server
from antiphon.cli.common.client import ApiClient, path_segment
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter, UrlFlag
from antiphon.cli.common.shell import UsageError, format_time
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import UpstreamError
from antiphon.wire.http.queue import UpstreamStatus, WorkerList, WorkerStatusEntry

app = App(
    name="workers",
    help="""
See the workers that run the models, and take some out of service.

It asks a running server: the configured one, or the one that --url names.

Try:
    antiphon workers list
    antiphon workers drain worker_68af0c1d2e3f --wait
""",
)

_ID_NAME = "A worker's id"
_PATH = "/workers"
_KIND_COUNT = 5
_POLL_INTERVAL_S = 0.5

_WORKER_HEAD = ("WORKER", "MODEL", "STATE", "TAKEN", "KINDS", "CAN", "UP", "HEARD", "VERSION", "ADDRESS")
_UPSTREAM_HEAD = ("UPSTREAM", "MODEL", "STATE", "WEIGHT", "TAKEN", "ANSWERED", "AFFINE", "FIRST OUTPUT", "COOLDOWN", "REASON")

_CAPABILITY_LABELS = (
    ("tools", ("tools",)),
    ("hears", ("audio_in", "listens")),
    ("speaks", ("audio_out",)),
    ("sees", ("images", "sees", "videos")),
    ("duplex", ("full_duplex",)),
)
"""The words of the column CAN, and the capabilities of which any one earns the word."""


@app.command(name="list")
def list_(*, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the workers.

    TAKEN is how many of a worker's slots are in use; UP is how long it has been
    there; HEARD is how long ago its last heartbeat came, if it runs in another
    process. Heartbeats come every 2 seconds; after 10 without one a worker is gone.

    The upstreams of models that have several follow: TAKEN is how many requests
    each has, ANSWERED how many of those that it got it began to answer, AFFINE
    how many came because their conversation belongs there.

    Try:
        antiphon workers list
        antiphon workers list --json
    """
    listing = server.find_server(shell, url, file).read(_PATH, WorkerList)
    if as_json:
        return shell.say_json(listing.workers)
    if not listing.workers:
        shell.note("there are no workers")
    else:
        shell.say_rows([_WORKER_HEAD, *(_row(worker, listing.now) for worker in listing.workers)])
    if listing.upstreams:
        shell.say()
        shell.say_rows([_UPSTREAM_HEAD, *map(_upstream_row, listing.upstreams)])
    return None


@app.command
def show(worker: str, /, *, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Show a worker: what it is, what its engine can do, and its sessions.

    Try:
        antiphon workers show worker_68af0c1d2e3f

    Args:
        worker: the id.
    """
    entry = server.find_server(shell, url, file).read(_worker_path(worker), WorkerStatusEntry)
    if as_json:
        return shell.say_json(entry)
    shell.say_rows(list(_facts(entry)))
    if entry.sessions:
        shell.say()
        rows = [(one.ticket_id, one.kind, format_time(one.started_at, seconds=True), one.key_id or "-") for one in entry.sessions]
        shell.say_rows([("TICKET", "KIND", "SINCE (UTC)", "KEY"), *rows])
    return None


@app.command
def drain(worker: str, /, *, wait: bool = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Give a worker no new sessions; those under way go on.

    Prints how many sessions are left. After the last one the worker stays
    connected and idle, or exits if it runs with --exit-when-drained.

    Try:
        antiphon workers drain minicpm-o-1
        antiphon workers drain worker_68af0c1d2e3f --wait

    Args:
        worker: the id.
        wait: return when it has no session left, or is gone.
    """
    client = server.find_server(shell, url, file)
    count = client.post(f"{_worker_path(worker)}/drain", {})["taken"]
    shell.note(f"{worker} gets no new sessions; {_format_sessions(count)} left")
    while wait and count:
        time.sleep(_POLL_INTERVAL_S)
        last_count, count = count, _session_count(client, worker)
        if count != last_count:
            shell.note(f"{_format_sessions(count)} left")


@app.command
def resume(worker: str, /, *, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Give sessions again to a worker that was drained.

    This also works if its connection broke and it has joined again. A worker
    that runs with --exit-when-drained still exits after its last session.

    Try:
        antiphon workers resume minicpm-o-1

    Args:
        worker: the id.
    """
    state = server.find_server(shell, url, file).post(f"{_worker_path(worker)}/resume", {})["status"]
    shell.note(f"{worker} gets sessions again; it is {state}")


@app.command
def remove(worker: str, /, *, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Remove a worker; sessions under way go on. One in another process exits after the last.

    Try:
        antiphon workers remove minicpm-o-1

    Args:
        worker: the id.
    """
    server.find_server(shell, url, file).delete(_worker_path(worker))
    shell.note(f"removed {worker}")


def _worker_path(worker: str) -> str:
    if not worker:
        raise UsageError("Name a worker; `antiphon workers list` shows them.")
    return f"{_PATH}/{path_segment(_ID_NAME, worker)}"


def _session_count(client: ApiClient, worker: str) -> int:
    """How many sessions a worker has; 0 if it is gone."""
    try:
        return client.read(_worker_path(worker), WorkerStatusEntry).taken
    except UpstreamError as error:
        if error.code != "worker_not_found":
            raise
        return 0


# Formatting


def _row(worker: WorkerStatusEntry, now: float) -> Sequence[str]:
    return (
        worker.worker_id,
        worker.model,
        worker.status,
        _format_slots(worker),
        "all" if len(worker.kinds) == _KIND_COUNT else ",".join(worker.kinds),
        _capability_labels(worker.abilities) or "-",
        format_age(worker.joined_at, now),
        _heartbeat_age(worker),
        worker.version or "-",
        worker.address or "-",
    )


def _upstream_row(upstream: UpstreamStatus) -> Sequence[str]:
    return (
        upstream.name,
        upstream.model,
        upstream.state,
        f"{upstream.weight:g}",
        f"{upstream.outstanding} of {upstream.concurrency}",
        f"{upstream.answered} of {upstream.requests}",
        str(upstream.affine),
        "-" if upstream.first_output_s is None else f"{upstream.first_output_s * 1000:.0f} ms",
        "-" if upstream.rest_s is None else format_duration(upstream.rest_s),
        upstream.reason or "-",
    )


def _facts(worker: WorkerStatusEntry) -> Iterator[Sequence[str]]:
    yield "worker", worker.worker_id
    yield "model", worker.model
    yield "address", worker.address or "in the server's process"
    yield "version", worker.version or "-"
    yield "state", worker.status
    yield "taken", _format_slots(worker)
    yield "served", str(worker.total_requests)
    yield "failures", f"{worker.failures} one after another"
    yield "kinds", ", ".join(worker.kinds)
    yield "can", _capability_labels(worker.abilities) or "-"
    yield "abilities", ", ".join(_capability_values(worker.abilities)) or "-"
    yield "up since", f"{format_time(worker.joined_at, seconds=True)} UTC"
    yield "heard", _heartbeat_age(worker)


def _format_slots(worker: WorkerStatusEntry) -> str:
    return f"{worker.taken} of {worker.slots or 'any'}"


def _capability_labels(capabilities: Capabilities) -> str:
    return ",".join(label for label, names in _CAPABILITY_LABELS if any(getattr(capabilities, name) for name in names))


def _capability_values(capabilities: Capabilities) -> Iterator[str]:
    for name, value in msgspec.structs.asdict(capabilities).items():
        if value is True:
            yield name
        elif isinstance(value, tuple) and value:
            yield f"{name} {'/'.join(value)}"
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{name} {value}"


def _heartbeat_age(worker: WorkerStatusEntry) -> str:
    return "-" if worker.silent_s is None else f"{format_duration(worker.silent_s)} ago"


def _format_sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
