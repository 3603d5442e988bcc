"""The addresses of this machine."""

import ipaddress
import socket

import pytest

from antiphon.config.settings import ServerSettings
from antiphon.server.tls.addresses import interface_addresses, outer_addresses


def test_they_are_addresses_on_which_one_can_listen():
    addresses = interface_addresses()
    assert ipaddress.ip_address("127.0.0.1") in addresses
    for address in addresses:
        if address.version == 4:
            with socket.socket() as listener:
                listener.bind((str(address), 0))


def test_the_one_from_which_packets_would_leave_is_among_them():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no route")
        assert ipaddress.ip_address(probe.getsockname()[0]) in interface_addresses()


def test_others_find_a_server_at_the_address_on_which_it_listens():
    assert outer_addresses(ServerSettings(host="192.0.2.4")) == ["192.0.2.4"]
    assert outer_addresses(ServerSettings(host="2001:db8::4")) == ["[2001:db8::4]"]
    assert outer_addresses(ServerSettings()) == []
    everywhere = outer_addresses(ServerSettings(host="0.0.0.0"))
    assert all(ipaddress.ip_address(address).version == 4 for address in everywhere)
    assert not any(ipaddress.ip_address(address).is_loopback for address in everywhere)
