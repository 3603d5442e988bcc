"""The server that a verb asks: one that runs, or one of its own for as long as it is needed."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.cli.common import settings
from antiphon.cli.common.client import ApiClient, ServerUnreachable
from antiphon.cli.common.shell import Shell, UsageError

if TYPE_CHECKING:
    from antiphon.config.load import Config


@contextlib.contextmanager
def ensure_server(shell: Shell, url: str | None, file: Path | None, prepare: "Callable[[Config, Shell], Config]") -> Iterator[ApiClient]:
    """
    The server that is asked: the one named, else the one that runs as configured, else one of its own.

    Args:
        url: as `--url` names it; `OPENAI_BASE_URL` is its twin.
        file: what `--config` named.
        prepared: makes a configuration one that can be served.
    """
    if (client := _explicit_server(shell, url)) is not None:
        yield client
        return
    config = settings.load(shell, file).config
    client = ApiClient(settings.base_url(config), shell.environ.get("ANTIPHON_API_KEY"))
    if client.is_alive():
        yield client
        return
    shell.note(f"no server at {client.base_url}, so the engine starts here, for as long as this takes")
    with background_server(prepare(config, shell)) as base_url:
        yield ApiClient(base_url)


def find_server(shell: Shell, url: str | None, file: Path | None) -> ApiClient:
    """
    The server that runs: the one named, else as configured.

    Raises:
        Unreachable: there is none.
    """
    if (client := _explicit_server(shell, url)) is not None:
        return client
    client = ApiClient(settings.base_url(settings.load(shell, file).config), shell.environ.get("ANTIPHON_API_KEY"))
    if not client.is_alive():
        raise ServerUnreachable(f"No server answers at {client.base_url}: start it with `antiphon serve`, or name another with --url.")
    return client


def _explicit_server(shell: Shell, url: str | None) -> ApiClient | None:
    """
    The server that was named, with the key for it: OpenAI's variables belong together, and ours goes to what is typed.

    Raises:
        UsageError: that is no address.
    """
    told = url or shell.environ.get("OPENAI_BASE_URL")
    if not told:
        return None
    if not re.match(r"https?://[^/]", told):
        raise UsageError(f"{'--url' if url else 'OPENAI_BASE_URL'} takes an address such as http://127.0.0.1:8642/v1, not '{told}'.")
    key = (shell.environ.get("ANTIPHON_API_KEY") if url else None) or shell.environ.get("OPENAI_API_KEY")
    return ApiClient(told, key)


@contextlib.contextmanager
def background_server(config: "Config") -> Iterator[str]:
    """The models of `config`, served by this process on a free port; yields the base address, and forgets everything at the end."""
    from antiphon.server.processes import run  # noqa: PLC0415 - the server takes a second to load; verbs that find one running don't need it

    quiet = config.logging.model_copy(update={"level": "warning"})
    with run.background_server(config.model_copy(update={"logging": quiet})) as base_url:
        yield base_url
