"""The model servers behind configured models, as the operator may see them: with their addresses."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.config.load import Config
from antiphon.masking import mask_password

LISTING_ENGINES = ("chat", "responses", "realtime")
"""The engines in front of a server that lists its models."""

_CONNECT_TIMEOUT_S = 2.0
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
    """The model servers of the configured models, each asked for a connection; it takes 2 seconds if none answers."""
    names: dict[str, list[str]] = {}
    for entry in config.models:
        base_url = entry.options.get("base_url")
        if entry.engine in LISTING_ENGINES and isinstance(base_url, str):
            names.setdefault(base_url, []).append(entry.name)
    with ThreadPoolExecutor(_MAX_CHECKS_AT_ONCE) as pool:
        problems = pool.map(_connection_problem, names)
        return [
            Upstream(", ".join(models), mask_password(base_url), problem)
            for (base_url, models), problem in zip(names.items(), problems, strict=True)
        ]


def unreachable_notes(config: Config) -> Iterator[str]:
    """A sentence without its period for each model server that can't be reached."""
    for upstream in check_upstreams(config):
        if upstream.problem is not None:
            yield f"the model server of '{upstream.models}' at {upstream.address} can't be reached: {upstream.problem}"


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
        return f"no answer in {_CONNECT_TIMEOUT_S:g} s"
    except socket.gaierror:
        return "no such host"
    except UnicodeError:
        return "no such host"
    except OSError as error:
        return (os.strerror(error.errno) if error.errno else str(error)).lower()
    return None
