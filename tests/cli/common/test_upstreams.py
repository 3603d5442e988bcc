"""Which model servers can't be reached, without waiting long for silent ones."""

import contextlib
import socket
import threading

import pytest

from antiphon.cli.common.upstreams import check_upstreams, note_unreachable
from support.server.scripted_server import configured


@pytest.fixture
def silent(tmp_path):
    """The configuration of a model whose server takes no connection and refuses none."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # until none is taken any more
            client = sockets.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        yield configured(tmp_path, {"*": {"engine": "chat", "base_url": base_url}})


def test_a_silent_server_is_noted_while_the_program_goes_on(silent):
    notes, has_noted = [], threading.Event()
    with note_unreachable(silent, lambda note: (notes.append(note), has_noted.set())):
        assert not notes
        assert has_noted.wait(20)
    assert "can't be reached: no answer in 2 s" in notes[0]


def test_nothing_is_noted_when_the_program_is_over(silent):
    notes = []
    with note_unreachable(silent, notes.append):
        pass
    assert check_upstreams(silent)[0].problem == "no answer in 2 s"  # by then the first check has its answer too
    assert not notes
