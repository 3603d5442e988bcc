"""The server that a command talks to: one that runs, or one started for as long as the command takes."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from antiphon.cli.common import lazy, settings, upstreams
from antiphon.cli.common.client import ApiClient, NoModelsError, ServerUnreachable
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.config.load import Config
from antiphon.errors import UpstreamError
from antiphon.masking import mask_address


@contextlib.contextmanager
def ensure_server(shell: Shell, url: str | None, file: Path | None, prepare: Callable[[Config, Shell], Config]) -> Iterator[ApiClient]:
    """
    A client of the named server, or of the configured one if it runs, or of one started here.

    Args:
        url: the value of `--url`; without it `OPENAI_BASE_URL` names the server.
        file: the value of `--config`.
        prepare: fetches what the configuration needs before a server starts here.
    """
    if (client := _named_server(shell, url, file)) is not None:
        yield client
        return
    config = settings.load(shell, file).config
    client = configured_client(shell, config, shell.environ.get("ANTIPHON_API_KEY"))
    with _with_upstream_addresses(config):
        if client.is_alive():
            yield client
            return
        shell.note(f"no server answers at {client.base_url}, so one starts for this command only")
        with background_server(prepare(config, shell)) as base_url:
            yield ApiClient(base_url)


@contextlib.contextmanager
def _with_upstream_addresses(config: Config) -> Iterator[None]:
    """Add to an error which model servers can't be reached, and where they are: the server tells that to no client."""
    try:
        yield
    except UpstreamError as error:
        if isinstance(error, ServerUnreachable) or not (notes := list(upstreams.unreachable_notes(config))):
            raise
        reason = "There is no model to choose." if isinstance(error, NoModelsError) else error.message
        message = " ".join([reason, *(f"T{note[1:]}." for note in notes)])
        raise UpstreamError(message, code=error.code, param=error.param, status=error.status) from None


def find_server(shell: Shell, url: str | None, file: Path | None) -> ApiClient:
    """
    A client of the named server, or of the configured one.

    Raises:
        ServerUnreachable: it doesn't run.
    """
    if (client := _named_server(shell, url, file)) is not None:
        return client
    client = configured_client(shell, settings.load(shell, file).config, shell.environ.get("ANTIPHON_API_KEY"))
    if not client.is_alive():
        raise ServerUnreachable(f"No server answers at {client.base_url}: start it with `antiphon serve`, or name another with --url.")
    return client


def configured_client(shell: Shell, config: Config, key: str | None = None) -> ApiClient:
    """A client of the configured server, which may run with `--tls` where the configuration does not say so."""
    ca_file = _ca_file(shell, config)
    client = ApiClient(settings.base_url(config), key, ca_file=ca_file)
    if config.server.tls == "off" and client.needs_tls():
        return ApiClient(client.base_url.replace("http:", "https:", 1), key, ca_file=ca_file)
    return client


def trusted_authority(shell: Shell, address: str, file: Path | None) -> Path | None:
    """The authority to trust at an address: the one that the environment names, or else that of a server in the home folder."""
    if not address.startswith("https:"):
        return None
    if shell.environ.get("ANTIPHON_CA_FILE"):
        return _ca_file(shell, None)
    return _ca_file(shell, settings.load(shell, file).config)


def _ca_file(shell: Shell, config: Config | None) -> Path | None:
    if path := shell.environ.get("ANTIPHON_CA_FILE"):
        return shell.cwd / Path(path).expanduser()
    return config.ca_file if config is not None and config.ca_file.is_file() else None


def _named_server(shell: Shell, url: str | None, file: Path | None) -> ApiClient | None:
    address = url or shell.environ.get("OPENAI_BASE_URL")
    if not address:
        return None
    if not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#@\s]*)?", address):
        source, key_variable = ("--url", "ANTIPHON_API_KEY") if url else ("OPENAI_BASE_URL", "OPENAI_API_KEY")
        hint = f" Put the key into {key_variable}." if re.search("[?@]", address) else ""
        raise UsageError(f"{source} takes an address such as http://127.0.0.1:8642/v1, not '{mask_address(address)}'.{hint}")
    # Both addresses were named, so both get OPENAI_API_KEY; one that was typed gets ANTIPHON_API_KEY first (docs/decisions/0003).
    key = (shell.environ.get("ANTIPHON_API_KEY") if url else None) or shell.environ.get("OPENAI_API_KEY")
    return ApiClient(address, key, ca_file=trusted_authority(shell, address, file))


@contextlib.contextmanager
def background_server(config: Config) -> Iterator[str]:
    """Serve the configured models in this process, on a free port; yields the base address. It keeps nothing."""
    quiet = config.logging.model_copy(update={"level": "warning"})
    with lazy.run.background_server(config.model_copy(update={"logging": quiet})) as base_url:
        yield base_url
