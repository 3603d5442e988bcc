"""The model servers behind configured models, as the operator may see them: with their addresses."""

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.config.load import Config
from antiphon.masking import mask_password

LISTING_ENGINES = ("chat", "responses", "realtime")
"""The engines in front of a server that lists its models."""

_CONNECT_TIMEOUT_S = 2.0

_WAIT_S = 5.0
"""How long at most the checks are waited for: looking up a name has no limit of its own."""

_MAX_CHECKS_AT_ONCE = 8
_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class Upstream(Struct, frozen=True):
    """
    A model server.

    Attributes:
        models: the configured names that it stands behind, as text.
        address: without secrets.
        problem: why it can't be reached; None if it can.
    """

    models: str
    address: str
    problem: str | None


def check_upstreams(config: Config) -> list[Upstream]:
    """
    The model servers of the configured models, each asked for a connection; it takes 2 seconds if none answers, and 5
    if their names can't be looked up.
    """
    names = _names_by_address(config)
    answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
    _start_checks(names, lambda base_url, problem: answers.put((base_url, problem)))
    problems: dict[str, str | None] = {}
    deadline_s = time.monotonic() + _WAIT_S
    # Those that have not answered by then count as silent.
    with contextlib.suppress(queue.Empty):
        while len(problems) < len(names):
            base_url, problem = answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
            problems[base_url] = problem
    return [_upstream(base_url, models, problems.get(base_url, _no_answer(_WAIT_S))) for base_url, models in names.items()]


def unreachable_notes(config: Config) -> Iterator[str]:
    """A sentence without its period for each model server that can't be reached."""
    for upstream in check_upstreams(config):
        if upstream.problem is not None:
            yield _note(upstream)


@contextlib.contextmanager
def note_unreachable(config: Config, notice: Callable[[str], None]) -> Iterator[None]:
    """
    While the body runs, give `notice` a sentence without its period for each model server that can't be reached, as
    soon as that is known; the body waits for none of them.
    """
    names = _names_by_address(config)
    is_over = threading.Event()

    def report(base_url: str, problem: str | None) -> None:
        if problem is not None and not is_over.is_set():
            notice(_note(_upstream(base_url, names[base_url], problem)))

    _start_checks(names, report)
    try:
        yield
    finally:
        is_over.set()


def _names_by_address(config: Config) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for entry in config.models:
        for base_url in (table.get("base_url") for table in (entry.options, *entry.upstream_tables)):
            if entry.engine in LISTING_ENGINES and isinstance(base_url, str):
                names.setdefault(base_url, []).append(entry.name)
    return names


def _upstream(base_url: str, models: list[str], problem: str | None) -> Upstream:
    return Upstream(", ".join(models), mask_password(base_url), problem)


def _note(upstream: Upstream) -> str:
    return f"the model server of '{upstream.models}' at {upstream.address} can't be reached: {upstream.problem}"


def _start_checks(base_urls: Mapping[str, object], on_checked: Callable[[str, str | None], None]) -> None:
    """Check each address in a thread, which may outlast the program: a look-up can't be stopped."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for base_url in base_urls:
        waiting.put(base_url)

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                base_url = waiting.get_nowait()
                on_checked(base_url, _connection_problem(base_url))

    for _ in range(min(_MAX_CHECKS_AT_ONCE, len(base_urls))):
        threading.Thread(target=work, name="upstream check", daemon=True).start()


def _no_answer(timeout_s: float) -> str:
    return f"no answer in {timeout_s:g} s"


def _connection_problem(base_url: str) -> str | None:
    try:
        url = urlsplit(base_url)
        port = url.port or _DEFAULT_PORTS.get(url.scheme)
    except ValueError:
        return None
    if not url.hostname or port is None:
        return None  # the configuration's check says what is wrong with it
    try:
        socket.create_connection((url.hostname, port), _CONNECT_TIMEOUT_S).close()
    except TimeoutError:
        return _no_answer(_CONNECT_TIMEOUT_S)
    except socket.gaierror:
        return "no such host"
    # Of a name that IDNA can't encode, such as one with a label of more than 63 characters.
    except UnicodeError:
        return "no such host"
    except OSError as error:
        return (os.strerror(error.errno) if error.errno else str(error)).lower()
    return None
