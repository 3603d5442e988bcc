"""What a signal does to a server with work under way."""

import json
import os
import signal
from pathlib import Path

import pytest

from support.server.own_process import serving
from support.server.raw_http import ask, connect, error_of, request, rest_of, statuses, until

STREAMS = 20


def opened(base_url, model):
    """A stream that has begun to say something."""
    connection = connect(base_url)
    connection.sendall(ask(model, stream=True))
    return connection, until(connection, b"output_text.delta")


def events(answer):
    return [json.loads(line.removeprefix(b"data: ")) for line in answer.split(b"\n") if line.startswith(b"data: ")]


def one(base_url, data):
    with connect(base_url) as connection:
        connection.sendall(data)
        return rest_of(connection)


def test_no_stream_is_cut_and_no_new_work_is_taken(tmp_path):
    with serving(tmp_path) as (process, url):
        streams = [opened(url, "short") for _ in range(STREAMS)]
        process.send_signal(signal.SIGTERM)
        with connect(url) as connection:
            connection.sendall(request(path="/readyz"))
            answer = rest_of(connection)
        assert statuses(answer) == [503]
        refused = one(url, ask())
        assert statuses(refused) == [503]
        assert b"retry-after: 5" in refused
        assert b"connection: close" in refused
        assert error_of(refused)["code"] == "server_shutting_down"
        assert statuses(one(url, request(path="/livez"))) == [200]
        ends = [events(begun + rest_of(connection)) for connection, begun in streams]
        assert all(end[-1]["type"] == "response.completed" for end in ends)
        assert all(end[-1]["response"]["output"][0]["content"][0]["text"] == "la " * 60 for end in ends)
        for connection, _ in streams:
            connection.close()
        assert process.wait(10) == 0


def test_what_is_not_finished_by_the_deadline_is_told_so_and_kept_so(tmp_path):
    with serving(tmp_path, drain_s=0.5) as (process, url):
        streams = [opened(url, "endless") for _ in range(5)]
        waiting = connect(url)
        waiting.sendall(ask("endless"))
        process.send_signal(signal.SIGTERM)
        for connection, begun in streams:
            answer = begun + rest_of(connection)
            assert answer.endswith(b"0\r\n\r\n"), "the stream ends in order"
            *_, error, failed = events(answer)
            assert (error["type"], error["code"]) == ("error", "server_shutting_down")
            assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
            failure = failed["response"]["error"]
            assert (failure["code"], "(server_shutting_down)" in failure["message"]) == ("server_error", True)
            connection.close()
        refused = rest_of(waiting)
        assert (statuses(refused), error_of(refused)["code"]) == ([503], "server_shutting_down")
        waiting.close()
        assert process.wait(10) == 0
    with serving(tmp_path) as (process, url):
        kept = one(url, request(path=f"/v1/responses/{failed['response']['id']}", connection="close"))
        assert b'"status":"failed"' in kept


@pytest.mark.parametrize(("number", "processes"), [(signal.SIGQUIT, 1), (signal.SIGHUP, 2)])
def test_a_lost_terminal_and_quit_cut_nothing_either(tmp_path, number, processes):
    with serving(tmp_path, drain_s=60, processes=processes) as (process, url):
        connection, begun = opened(url, "short")
        process.send_signal(number)
        process.send_signal(signal.SIGHUP)  # as systemd does behind any signal; it hurries nothing
        assert events(begun + rest_of(connection))[-1]["type"] == "response.completed"
        assert process.wait(20) == 0
        connection.close()


def test_a_server_that_was_started_to_outlive_its_terminal_does(tmp_path):
    with serving(tmp_path, ignores=signal.SIGHUP, drain_s=3600) as (process, url):
        process.send_signal(signal.SIGHUP)
        assert statuses(one(url, request(path="/readyz", connection="close"))) == [200]


def test_a_second_signal_does_not_wait_and_its_clients_are_told_why(tmp_path):
    with serving(tmp_path, drain_s=3600) as (process, url):
        connection, begun = opened(url, "endless")
        waiting = connect(url)
        waiting.sendall(ask("endless"))
        assert statuses(one(url, request(path="/livez", connection="close"))) == [200]
        process.send_signal(signal.SIGINT)
        assert statuses(one(url, request(path="/readyz"))) == [503]
        process.send_signal(signal.SIGINT)
        *_, error, failed = events(begun + rest_of(connection))
        assert (error["type"], error["code"], failed["type"]) == ("error", "server_shutting_down", "response.failed")
        refused = rest_of(waiting)
        assert (statuses(refused), error_of(refused)["code"]) == ([503], "server_shutting_down")
        assert "Traceback" not in process.stderr.read()
        process.wait(10)
        connection.close()
        waiting.close()


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def status_of(pid):
    """What the kernel says of a process, by name."""
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())


def test_a_second_signal_reaches_processes_that_have_not_seen_the_first(tmp_path):
    """Of two signals of a kind that wait for a process, the kernel delivers one."""
    with serving(tmp_path, drain_s=3600, processes=2) as (supervisor, url):
        connection, begun = opened(url, "endless")
        for pid in children(supervisor):
            os.kill(pid, signal.SIGSTOP)
        for number in (signal.SIGTERM, signal.SIGINT):
            supervisor.send_signal(number)
        while (now := status_of(supervisor.pid))["State"][0] != "S" or int(now["ShdPnd"], 16):  # it has not done as told yet
            pass
        for pid in children(supervisor):
            os.kill(pid, signal.SIGCONT)
        assert supervisor.wait(30) == 0
        *_, error, failed = events(begun + rest_of(connection))
        assert (error["type"], error["code"], failed["type"]) == ("error", "server_shutting_down", "response.failed")
        connection.close()


def test_a_signal_to_every_process_cuts_nothing(tmp_path):
    """As systemd sends it (`KillMode=control-group`): each process gets it, and the supervisor passes its own on."""
    with serving(tmp_path, drain_s=3600, processes=2) as (supervisor, url):
        streams = [opened(url, "short") for _ in range(4)]
        processes = children(supervisor)
        for number in (signal.SIGTERM, signal.SIGINT):  # two kinds, so that the kernel makes no one of them
            for pid in processes:
                os.kill(pid, number)
        supervisor.send_signal(signal.SIGTERM)
        for connection, begun in streams:
            assert events(begun + rest_of(connection))[-1]["type"] == "response.completed"
            connection.close()
        assert supervisor.wait(20) == 0


def test_who_does_not_read_does_not_hold_up_the_end(tmp_path):
    with serving(tmp_path, drain_s=0.2) as (process, url):
        connection = connect(url)
        connection.sendall(ask("parrot", "la " * 400_000, stream=True))
        assert connection.recv(1)
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_server_with_nothing_to_do_stops_at_once(tmp_path, number):
    with serving(tmp_path, drain_s=3600) as (process, url):
        with connect(url) as idle:
            idle.sendall(request())
            until(idle, b'{"status":"ok"}')
            process.send_signal(number)
            assert process.wait(10) == 0
            assert rest_of(idle) == b""
