"""The hub: resumed, given up soon when it can't be reached, switched off by the ecosystem's own variables."""

import http.server
import socket
import threading

import pytest

from antiphon.weights.catalogue import HubFile
from antiphon.weights.hub import UNREACHABLE_S, Hub
from antiphon.weights.partial import PartialFile, SourceUnavailable

FILE = HubFile(repo="org/tiny", file="tiny.gguf")


def fetch(hub, part, size_bytes):
    hub.fetch(FILE, part, size_bytes, lambda _done_bytes: None)


def test_a_connection_that_breaks_is_taken_up_again_where_it_broke(world, tmp_path, body):
    world.on_hub()
    world.server.gives_bytes = 4096
    part = PartialFile(tmp_path / "file")
    fetch(world.hub, part, len(body))
    assert part.path.read_bytes() == body
    assert world.server.asked == [None, "bytes=4096-", "bytes=8192-"]


def test_a_hub_that_can_not_resume_gives_the_whole_file(world, tmp_path, body):
    world.on_hub()
    world.server.resumes = False
    part = PartialFile(tmp_path / "file")
    part.path.write_bytes(b"left over")
    fetch(world.hub, part, len(body))
    assert part.path.read_bytes() == body


def test_a_file_that_is_too_short_is_trouble(world, tmp_path, body):
    world.on_hub(body[:100])
    world.server.resumes = False
    with pytest.raises(SourceUnavailable, match=f"of {len(body)} bytes"):
        fetch(world.hub, PartialFile(tmp_path / "file"), len(body))


def test_a_missing_file_is_trouble(world, tmp_path):
    with pytest.raises(SourceUnavailable, match="the hub answered 404"):
        fetch(world.hub, PartialFile(tmp_path / "file"), 10)


def test_a_hub_that_refuses_the_connection_is_trouble(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(SourceUnavailable, match="can't be reached"):
            fetch(Hub(f"http://127.0.0.1:{taken.getsockname()[1]}"), PartialFile(tmp_path / "file"), 10)


def test_a_hub_that_is_silent_is_waited_for_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = Hub(f"http://127.0.0.1:{silent.getsockname()[1]}", response_timeout_s=0.05)
        with pytest.raises(SourceUnavailable, match=r"no answer in 0\.05 seconds"):
            fetch(hub, PartialFile(tmp_path / "file"), 10)
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(SourceUnavailable, match="no answer"):
            fetch(hub, PartialFile(tmp_path / "file"), 10)
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_the_environment_names_another_hub(world, tmp_path, body):
    world.on_hub()
    part = PartialFile(tmp_path / "file")
    fetch(Hub.from_environ({"HF_ENDPOINT": f"http://127.0.0.1:{world.server.server_port}/"}), part, len(body))
    assert part.path.read_bytes() == body


def test_the_environment_switches_the_hub_off(tmp_path):
    with pytest.raises(SourceUnavailable, match="HF_HUB_OFFLINE"):
        fetch(Hub.from_environ({"HF_HUB_OFFLINE": "1"}), PartialFile(tmp_path / "file"), 10)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_hub_that_can_be_reached_again_is_asked_after_a_while(tmp_path):
    clock, part = Clock(), PartialFile(tmp_path / "file")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    hub = Hub(f"http://127.0.0.1:{address[1]}", clock=clock)
    for waited_s in (0, UNREACHABLE_S[0]):
        clock.now += waited_s
        with pytest.raises(SourceUnavailable, match="can't be reached"):
            fetch(hub, part, 10)
    with http.server.HTTPServer(address, http.server.BaseHTTPRequestHandler) as back:
        clock.now += UNREACHABLE_S[1] - 1
        with pytest.raises(SourceUnavailable, match="can't be reached"):
            fetch(hub, part, 10)
        clock.now += 1
        thread = threading.Thread(target=back.handle_request)
        thread.start()
        with pytest.raises(SourceUnavailable, match="the hub answered 501"):
            fetch(hub, part, 10)
        thread.join()


@pytest.mark.parametrize("address", ["http://ada:secret@127.0.0.1:1", "http://secret@127.0.0.1:1"])
def test_what_lets_in_at_a_hub_is_told_nobody(tmp_path, address):
    with pytest.raises(SourceUnavailable, match="can't be reached") as raised:
        fetch(Hub.from_environ({"HF_ENDPOINT": address}), PartialFile(tmp_path / "file"), 10)
    assert "secret" not in str(raised.value)
