"""Addresses, taken once or by several processes of one server."""

import pytest

from antiphon.errors import ServerError
from antiphon.server.transport.listener import base_url, open_listener, open_listeners


def test_several_processes_have_one_address():
    with open_listeners(3, "127.0.0.1", 0) as listeners:
        assert len({base_url(listener) for listener in listeners}) == 1
        assert len(listeners) == 3


def test_an_address_that_another_server_has_is_refused_however_it_was_taken():
    with open_listener("127.0.0.1", 0) as alone, open_listeners(2, "127.0.0.1", 0) as shared:
        for listener in (alone, shared[0]):
            listener.listen()
            with pytest.raises(ServerError, match="Can't listen on"), open_listeners(2, "127.0.0.1", listener.getsockname()[1]):
                pass
