"""`antiphon workers`: list, show, drain, resume, remove."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from cyclopts import App

from antiphon.cli.commands.queue import format_age, format_duration
from antiphon.cli.common import server
from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter, UrlFlag
from antiphon.cli.common.shell import UsageError
from antiphon.errors import UpstreamError

_HELP = """
See what has places with the models, and take some of it out of service.

A running server knows: the one configured, or the one that --url names.

Try:
    antiphon workers list
    antiphon workers drain worker_68af0c1d2e3f --wait
"""

_PATH = "/workers"
_KIND_COUNT = 5
_POLL_INTERVAL_S = 0.5

_CAPABILITY_LABELS = (
    ("tools", ("tools",)),
    ("hears", ("audio_in", "listens")),
    ("speaks", ("audio_out",)),
    ("sees", ("images", "sees", "videos")),
    ("duplex", ("full_duplex",)),
)
"""What it is called that an engine can do, and the abilities any of which means it."""


def build_app() -> App:
    """`workers` and what can be done with them."""
    app = App(name="workers", help=_HELP)
    app.command(list_, name="list")
    for verb in (show, drain, resume, remove):
        app.command(verb)
    return app


def list_(*, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the workers.

    TAKEN is how many of their places are; UP is since when a worker is there;
    HEARD is how long ago its latest sign of life came, for those that joined. They
    beat every 2 seconds, and are gone after 10 of silence.

    Try:
        antiphon workers list
        antiphon workers list --json
    """
    told = server.find_server(shell, url, file).get(_PATH)
    workers = told["workers"]
    if as_json:
        return shell.say_json(workers)
    if not workers:
        return shell.note("there are no workers")
    head = ("WORKER", "MODEL", "STATE", "TAKEN", "KINDS", "CAN", "UP", "HEARD", "VERSION", "ADDRESS")
    return shell.say_rows([head, *(_row(one, told["now"]) for one in workers)])


def show(worker: str, /, *, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Show a worker: what it is, what its engine can do, and whom it serves.

    Try:
        antiphon workers show worker_68af0c1d2e3f

    Args:
        worker: the id.
    """
    found = server.find_server(shell, url, file).get(_worker_path(worker))
    if as_json:
        return shell.say_json(found)
    shell.say_rows(list(_facts(found)))
    sessions = found["sessions"]
    if sessions:
        shell.say()
        rows = [(one["ticket_id"], one["kind"], _format_time(one["started_at"]), one["key_id"] or "-") for one in sessions]
        shell.say_rows([("TICKET", "KIND", "SINCE (UTC)", "KEY"), *rows])
    return None


def drain(worker: str, /, *, wait: bool = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Give no more places with a worker, and tell it so; sessions under way go on.

    A worker that joined says how many are left. When there are none it stays
    joined and idle, or ends if it was started with --exit-when-drained.

    Try:
        antiphon workers drain minicpm-o-1
        antiphon workers drain worker_68af0c1d2e3f --wait

    Args:
        worker: the id.
        wait: return when it has no sessions left, or is gone.
    """
    client = server.find_server(shell, url, file)
    left = client.post(f"{_worker_path(worker)}/drain", {})["taken"]
    shell.note(f"{worker} gets nobody more; {_format_sessions(left)} left")
    while wait and left:
        time.sleep(_POLL_INTERVAL_S)
        was, left = left, _session_count(client, worker)
        if left != was:
            shell.note(f"{_format_sessions(left)} left")


def resume(worker: str, /, *, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Give places again with a worker that was drained, and tell it so.

    One that joined takes sessions again, also when it has lost its link and joined
    anew. One that ends with its last session can't be kept from it.

    Try:
        antiphon workers resume minicpm-o-1

    Args:
        worker: the id.
    """
    state = server.find_server(shell, url, file).post(f"{_worker_path(worker)}/resume", {})["status"]
    shell.note(f"{worker} gets sessions again; it is {state}")


def remove(worker: str, /, *, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Forget a worker; sessions under way go on. One that joined ends after the last.

    Try:
        antiphon workers remove minicpm-o-1

    Args:
        worker: the id.
    """
    server.find_server(shell, url, file).delete(_worker_path(worker))
    shell.note(f"removed {worker}")


def _worker_path(worker: str) -> str:
    if not worker:
        raise UsageError("Which one? `antiphon workers list` has them.")
    return f"{_PATH}/{quote(worker, safe='')}"


def _session_count(client: ApiClient, worker: str) -> int:
    """How many sessions a worker has; none where it is gone."""
    try:
        taken: int = client.get(_worker_path(worker))["taken"]
    except UpstreamError as trouble:
        if trouble.code != "worker_not_found":
            raise
        return 0
    return taken


# How it is told


def _row(worker: Mapping[str, Any], now: float) -> Sequence[str]:
    return (
        worker["worker_id"],
        worker["model"],
        worker["status"],
        _format_slots(worker),
        "all" if len(worker["kinds"]) == _KIND_COUNT else ",".join(worker["kinds"]),
        _capability_labels(worker) or "-",
        format_age(worker["joined_at"], now),
        _heartbeat_age(worker),
        worker["version"] or "-",
        worker["address"] or "-",
    )


def _facts(worker: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    yield "worker", worker["worker_id"]
    yield "model", worker["model"]
    yield "address", worker["address"] or "in the server's process"
    yield "version", worker["version"] or "-"
    yield "state", worker["status"]
    yield "taken", _format_slots(worker)
    yield "served", str(worker["total_requests"])
    yield "failures", f"{worker['failures']} one after another"
    yield "kinds", ", ".join(worker["kinds"])
    yield "can", _capability_labels(worker) or "-"
    yield "abilities", ", ".join(_capability_values(worker["abilities"])) or "-"
    yield "up since", f"{_format_time(worker['joined_at'])} UTC"
    yield "heard", _heartbeat_age(worker)


def _format_slots(worker: Mapping[str, Any]) -> str:
    return f"{worker['taken']} of {worker['slots'] or 'any'}"


def _capability_labels(worker: Mapping[str, Any]) -> str:
    abilities = worker["abilities"]
    return ",".join(name for name, any_of in _CAPABILITY_LABELS if any(abilities[each] for each in any_of))


def _capability_values(capabilities: Mapping[str, Any]) -> Iterator[str]:
    """What is more than nothing."""
    for name, value in capabilities.items():
        if value is True:
            yield name
        elif isinstance(value, list) and value:
            yield f"{name} {'/'.join(value)}"
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{name} {value}"


def _heartbeat_age(worker: Mapping[str, Any]) -> str:
    return "-" if worker["silent_s"] is None else f"{format_duration(worker['silent_s'])} ago"


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _format_sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
