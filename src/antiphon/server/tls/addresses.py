"""The addresses of this machine's network interfaces, from the C library: Python's own has no way to ask for them."""

import ctypes
import ctypes.util
import ipaddress
import socket
import sys
from collections.abc import Sequence

from antiphon.config.settings import ServerSettings

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_HAS_LENGTH = sys.platform == "darwin" or "bsd" in sys.platform
"""Whether an address begins with its length, before its family (BSD)."""


class _Interface(ctypes.Structure):
    """The begin of `struct ifaddrs`, which is the same everywhere (getifaddrs(3))."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def interface_addresses() -> Sequence[IpAddress]:
    """All addresses of this machine, without those that are good on one link only; those of this machine alone if it can't be asked."""
    loopback = [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    try:
        library = ctypes.CDLL(None, use_errno=True)
        first = ctypes.POINTER(_Interface)()
        if library.getifaddrs(ctypes.byref(first)):
            return loopback
    except (OSError, AttributeError):
        return loopback
    try:
        addresses, each = [*loopback], first
        while each:  # type: ignore[truthy-bool]  # a null pointer is false
            if each.contents.address and (address := _address_at(each.contents.address)) is not None and address not in addresses:
                addresses.append(address)
            each = each.contents.next
    finally:
        library.freeifaddrs(first)
    return [address for address in addresses if not address.is_link_local]


def _address_at(pointer: int) -> IpAddress | None:
    """The address in a `struct sockaddr`; None where it is of another family."""
    family = ctypes.c_uint8.from_address(pointer + 1).value if _HAS_LENGTH else ctypes.c_uint16.from_address(pointer).value
    if family == socket.AF_INET:  # after family and port
        return ipaddress.IPv4Address(ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:  # after family, port and flow label
        return ipaddress.IPv6Address(ctypes.string_at(pointer + 8, 16))
    return None


def outer_addresses(settings: ServerSettings) -> Sequence[str]:
    """The addresses by which other machines may reach a server with these settings, as they stand in a URL; IPv4 first."""
    host = _parse_address(settings.host)
    if host is not None and not host.is_unspecified:
        addresses = [] if host.is_loopback else [host]
    else:
        addresses = [address for address in interface_addresses() if not address.is_loopback]
        if host is not None and host.version == 4:
            addresses = [address for address in addresses if address.version == 4]
    by_version = sorted(addresses, key=lambda address: address.version)
    return [f"[{address}]" if address.version == 6 else str(address) for address in by_version]


def _parse_address(text: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
