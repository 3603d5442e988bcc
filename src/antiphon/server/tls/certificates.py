"""
The server's certificates: made where they are missing, and renewed while it runs.

They lie in `tls` in the home folder, readable by the server's user alone: `ca.pem` (the authority and its key), `ca.crt`
(the authority for people to install) and `server.pem`. All processes of a server use the same.
"""

import datetime
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec import Struct

from antiphon.config.load import Config
from antiphon.errors import ServerError
from antiphon.runtime.core.home_lock import folder_lock, write_private
from antiphon.server.tls.issue import KeyPair, decode_key_pair, fingerprint, is_covered, issue_authority, issue_server, names_of
from antiphon.server.tls.names import ServerNames, machine_names, server_names

_AUTHORITY_FILE, _SERVER_FILE = "ca.pem", "server.pem"

CHECK_S = 60.0
"""How often a new connection has the certificate looked at: whether it ends soon, or lacks a name."""


class Certificates(Struct, frozen=True, kw_only=True):
    """
    The authority and the server's certificate.

    Attributes:
        left_out: names of this machine that the authority may not name.
    """

    authority: KeyPair
    server: KeyPair
    left_out: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the authority."""
        return fingerprint(self.authority.certificate)


def read_certificates(config: Config) -> Certificates | None:
    """
    The certificates as they are; None where none were made.

    Raises:
        ServerError: they can't be read.
    """
    folder = config.tls_folder
    try:
        authority, server = _read(folder / _AUTHORITY_FILE), _read(folder / _SERVER_FILE)
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from None
    return None if authority is None or server is None else Certificates(authority=authority, server=server)


def ensure_certificates(config: Config, names: ServerNames, now: datetime.datetime) -> Certificates:
    """
    Certificates for these names that are valid for some time; what is missing or about to end is made anew.

    The authority is replaced only if it ends, or may not name what the operator gave: those who trust it would have
    to install another. Names and addresses that the machine has got since are left out then.

    Raises:
        ServerError: the files can't be read or written.
    """
    folder = config.tls_folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with folder_lock(folder):
            authority = _ensure_authority(config, names, now)
            return Certificates(
                authority=authority,
                server=_ensure_server(folder / _SERVER_FILE, authority, names, now),
                left_out=tuple(str(name) for name in (*names.names, *names.addresses) if not is_covered(authority, name)),
            )
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from None


def _ensure_authority(config: Config, names: ServerNames, now: datetime.datetime) -> KeyPair:
    path = config.tls_folder / _AUTHORITY_FILE
    authority = _read(path)
    from_operator = (*names.operator_names, *names.operator_addresses)
    # One that has not begun stays: the clock of a machine without a battery is behind at first.
    if authority is None or not authority.is_lasting(now) or not all(is_covered(authority, name) for name in from_operator):
        authority = issue_authority(names, machine_names()[0] if machine_names() else "localhost", now)
        write_private(path, authority.encode())
    if _read_bytes(config.ca_file) != authority.encode_certificate():
        write_private(config.ca_file, authority.encode_certificate())
    return authority


def _ensure_server(path: Path, authority: KeyPair, names: ServerNames, now: datetime.datetime) -> KeyPair:
    try:
        server = _read(path)
    except ValueError:
        server = None
    if server is None or not server.is_lasting(now) or not server.has_begun(now) or not _is_for(server, authority, names):
        server = issue_server(authority, names, now)
        write_private(path, server.encode())
    return server


def _is_for(server: KeyPair, authority: KeyPair, names: ServerNames) -> bool:
    try:
        server.certificate.verify_directly_issued_by(authority.certificate)
    except Exception:  # of several kinds: another issuer, or another key
        return False
    present_names, present_addresses = names_of(server)
    return all(name in present_names for name in names.names if is_covered(authority, name)) and all(
        address in present_addresses for address in names.addresses if is_covered(authority, address)
    )


def _read(path: Path) -> KeyPair | None:
    content = _read_bytes(path)
    return None if content is None else decode_key_pair(content)


def _read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _unusable(folder: Path, error: Exception) -> ServerError:
    result = ServerError("The server's certificates can't be used. The operator finds the reason in the server's log.")
    result.operator_message = f"The certificates in {folder} can't be used: {error}. Without that folder, new ones are made."
    return result


class ServerTls:
    """
    The TLS of a server, whose certificate is looked at again from time to time.

    Args:
        config: of which the names are read.
        clock: in seconds, for durations.

    Raises:
        ServerError: the certificates can't be read or made.
    """

    def __init__(
        self,
        config: Config,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._now = now
        self._clock = clock
        self._server, self._context = self._load()
        self._check_at = clock() + CHECK_S

    def context(self) -> ssl.SSLContext:
        """For a new connection."""
        if self._clock() >= self._check_at:
            self._check_at = self._clock() + CHECK_S
            try:
                self._refresh()
            except ServerError as error:  # the one in use may last a month yet
                structlog.get_logger().error("certificate_not_renewed", message=error.operator_message)
        return self._context

    def _refresh(self) -> None:
        certificates = self._ensure()
        if certificates.server.certificate != self._server:
            self._server, self._context = self._load()

    def _ensure(self) -> Certificates:
        return ensure_certificates(self._config, server_names(self._config), self._now())

    def _load(self) -> tuple[object, ssl.SSLContext]:
        certificates = self._ensure()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._config.tls_folder / _SERVER_FILE)
        return certificates.server.certificate, context
