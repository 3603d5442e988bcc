"""The names and addresses that the server's certificate is for."""

import functools
import ipaddress
import re
import socket
from collections.abc import Sequence

from msgspec import Struct

from antiphon.config.load import Config
from antiphon.server.tls.addresses import IpAddress, interface_addresses

MAX_NAMES = 100
"""The most of a kind in one certificate; a machine with more addresses has containers, whose networks nobody else reaches."""

_DNS_NAME = re.compile(r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


class ServerNames(Struct, frozen=True, kw_only=True):
    """
    What clients may call the server.

    Attributes:
        names: DNS names; one may begin with `*.`.
        operator_names: those of them that the operator gave, as against those that the machine has. Likewise the addresses.
    """

    names: tuple[str, ...]
    addresses: tuple[IpAddress, ...]
    operator_names: tuple[str, ...] = ()
    operator_addresses: tuple[IpAddress, ...] = ()


@functools.cache
def machine_names() -> Sequence[str]:
    """The names of this machine: as it calls itself, and for multicast DNS."""
    full = socket.gethostname().lower().rstrip(".")
    short = full.partition(".")[0]
    return [name for name in dict.fromkeys([full, short, f"{short}.local"]) if is_dns_name(name) and not name.startswith("localhost")]


def is_dns_name(text: str) -> bool:
    """Whether a text can be a name in a certificate."""
    return len(text) <= 253 and _DNS_NAME.fullmatch(text) is not None and not re.fullmatch(r"[\d.]+", text)


def server_names(config: Config) -> ServerNames:
    """The names and addresses of a server: the machine's, those that it listens on, and those that its clients may use."""
    texts = [text.lower() for text in (config.server.host, *config.server.allowed_hosts, *config.calls.addresses)]
    operator_addresses = [address for address in map(_parse_address, texts) if address is not None and not address.is_unspecified]
    operator_names = [text for text in texts if _parse_address(text) is None and is_dns_name(text) and text != "localhost"]
    names = dict.fromkeys(["localhost", *operator_names, *machine_names()])
    addresses = dict.fromkeys([*operator_addresses, *interface_addresses()])
    return ServerNames(
        names=tuple(names)[:MAX_NAMES],
        addresses=tuple(addresses)[:MAX_NAMES],
        operator_names=tuple(operator_names)[:MAX_NAMES],
        operator_addresses=tuple(operator_addresses)[:MAX_NAMES],
    )


def _parse_address(text: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
