"""`antiphon workers`: list, show, drain, resume, remove."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from cyclopts import App

from antiphon.cli.commands.queue import lasting, since
from antiphon.cli.common import server as own
from antiphon.cli.common.client import Client
from antiphon.cli.common.flags import Around, ConfigFile, Json, Url
from antiphon.cli.common.shell import UsageMistake
from antiphon.errors import UpstreamTrouble

_HELP = """
See what has places with the models, and take some of it out of service.

A running server knows: the one configured, or the one that --url names.

Try:
    antiphon workers list
    antiphon workers drain worker_68af0c1d2e3f --wait
"""

_PATH = "/workers"
_KINDS = 5
_LOOK_S = 0.5

_ABLE = (
    ("tools", ("tools",)),
    ("hears", ("audio_in", "listens")),
    ("speaks", ("audio_out",)),
    ("sees", ("images", "sees", "videos")),
    ("duplex", ("full_duplex",)),
)
"""What it is called that an engine can do, and the abilities any of which means it."""


def verbs() -> App:
    """`workers` and what can be done with them."""
    app = App(name="workers", help=_HELP)
    app.command(list_, name="list")
    for verb in (show, drain, resume, remove):
        app.command(verb)
    return app


def list_(*, as_json: Json = False, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    List the workers.

    TAKEN is how many of their places are; UP is since when a worker is there;
    HEARD is how long ago its latest sign of life came, for those that joined. They
    beat every 2 seconds, and are gone after 10 of silence.

    Try:
        antiphon workers list
        antiphon workers list --json
    """
    told = own.running(shell, url, file).get(_PATH)
    workers = told["workers"]
    if as_json:
        return shell.say_json(workers)
    if not workers:
        return shell.note("there are no workers")
    head = ("WORKER", "MODEL", "STATE", "TAKEN", "KINDS", "CAN", "UP", "HEARD", "VERSION", "ADDRESS")
    return shell.say_rows([head, *(_row(one, told["now"]) for one in workers)])


def show(worker: str, /, *, as_json: Json = False, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    Show a worker: what it is, what its engine can do, and whom it serves.

    Try:
        antiphon workers show worker_68af0c1d2e3f

    Args:
        worker: the id.
    """
    found = own.running(shell, url, file).get(_at(worker))
    if as_json:
        return shell.say_json(found)
    shell.say_rows(list(_facts(found)))
    sessions = found["sessions"]
    if sessions:
        shell.say()
        rows = [(one["ticket_id"], one["kind"], _when(one["started_at"]), one["key_id"] or "-") for one in sessions]
        shell.say_rows([("TICKET", "KIND", "SINCE (UTC)", "KEY"), *rows])
    return None


def drain(worker: str, /, *, wait: bool = False, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
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
    client = own.running(shell, url, file)
    left = client.post(f"{_at(worker)}/drain", {})["taken"]
    shell.note(f"{worker} gets nobody more; {_sessions(left)} left")
    while wait and left:
        time.sleep(_LOOK_S)
        was, left = left, _left(client, worker)
        if left != was:
            shell.note(f"{_sessions(left)} left")


def resume(worker: str, /, *, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    Give places again with a worker that was drained, and tell it so.

    One that joined takes sessions again, also when it has lost its link and joined
    anew. One that ends with its last session can't be kept from it.

    Try:
        antiphon workers resume minicpm-o-1

    Args:
        worker: the id.
    """
    state = own.running(shell, url, file).post(f"{_at(worker)}/resume", {})["status"]
    shell.note(f"{worker} gets sessions again; it is {state}")


def remove(worker: str, /, *, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    Forget a worker; sessions under way go on. One that joined ends after the last.

    Try:
        antiphon workers remove minicpm-o-1

    Args:
        worker: the id.
    """
    own.running(shell, url, file).delete(_at(worker))
    shell.note(f"removed {worker}")


def _at(worker: str) -> str:
    if not worker:
        raise UsageMistake("Which one? `antiphon workers list` has them.")
    return f"{_PATH}/{quote(worker, safe='')}"


def _left(client: Client, worker: str) -> int:
    """How many sessions a worker has; none where it is gone."""
    try:
        taken: int = client.get(_at(worker))["taken"]
    except UpstreamTrouble as trouble:
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
        _taken(worker),
        "all" if len(worker["kinds"]) == _KINDS else ",".join(worker["kinds"]),
        _able(worker) or "-",
        since(worker["joined_at"], now),
        _heard(worker),
        worker["version"] or "-",
        worker["address"] or "-",
    )


def _facts(worker: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    yield "worker", worker["worker_id"]
    yield "model", worker["model"]
    yield "address", worker["address"] or "in the server's process"
    yield "version", worker["version"] or "-"
    yield "state", worker["status"]
    yield "taken", _taken(worker)
    yield "served", str(worker["total_requests"])
    yield "failures", f"{worker['failures']} one after another"
    yield "kinds", ", ".join(worker["kinds"])
    yield "can", _able(worker) or "-"
    yield "abilities", ", ".join(_abilities(worker["abilities"])) or "-"
    yield "up since", f"{_when(worker['joined_at'])} UTC"
    yield "heard", _heard(worker)


def _taken(worker: Mapping[str, Any]) -> str:
    return f"{worker['taken']} of {worker['slots'] or 'any'}"


def _able(worker: Mapping[str, Any]) -> str:
    abilities = worker["abilities"]
    return ",".join(name for name, any_of in _ABLE if any(abilities[each] for each in any_of))


def _abilities(abilities: Mapping[str, Any]) -> Iterator[str]:
    """What is more than nothing."""
    for name, value in abilities.items():
        if value is True:
            yield name
        elif isinstance(value, list) and value:
            yield f"{name} {'/'.join(value)}"
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{name} {value}"


def _heard(worker: Mapping[str, Any]) -> str:
    return "-" if worker["silent_s"] is None else f"{lasting(worker['silent_s'])} ago"


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
