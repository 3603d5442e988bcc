"""The cases of the Autobahn test suite, which libraries of WebSockets are measured by."""

import json
import subprocess
import sys
import time

import pytest

from support.server.echo_server import echoing

SECTIONS = ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "10.*"]
CASES = 247

# In a process of its own, as the cases need modules and changes of modules that no other test should see.
PROGRAM = """
import asyncio, json, os, sys
from kosoku import FailureError, run_fuzzingclient

async def run():
    try:
        return await run_fuzzingclient(sys.argv[2], cases=sys.argv[3:], concurrency=int(sys.argv[1]))
    except FailureError as failure:
        return failure.results

results = asyncio.run(run())
print(json.dumps([(each.case_id, each.passed, each.behavior.value, each.behavior_close.value) for each in results]), flush=True)
os._exit(0)  # or its threads crash the interpreter that ends under them
"""


def outcomes(url, *cases):
    """
    Every case's name, whether it passed, and what was said of its messages and of its end.

    The suite waits one second for most things, which a busy machine can miss: what fails is run again, alone.
    """
    found = run_cases(url, 8, cases)
    failed = [case for case, passed, *_ in found if not passed]
    again = {case[0]: case for case in run_cases(url, 1, failed)} if failed else {}
    return [again.get(case[0], case) for case in found]


def run_cases(url, concurrency, cases):
    ran = subprocess.run([sys.executable, "-c", PROGRAM, str(concurrency), url, *cases], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def is_soon(look, wanted):
    """Whether `look()` is `wanted` within ten seconds, as the server's thread may learn of an end after the client."""
    deadline = time.monotonic() + 10
    while look() != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return look() == wanted


@pytest.fixture
def served(tmp_path):
    with echoing(tmp_path, pace=1e9) as server:
        yield server


def test_every_case_of_the_protocol_passes(served):
    found = outcomes(served.url.replace("http", "ws") + "/echo", *SECTIONS)
    assert [case for case in found if not case[1]] == []
    assert len(found) == CASES
    # Bad UTF-8 within a frame is found when the frame is whole, which the suite lets pass.
    assert [case[0] for case in found if case[2] == "NON-STRICT"] == ["6.4.3", "6.4.4"]
    assert is_soon(lambda: {echo.gone for echo in served.echoes}, {1})
    assert is_soon(lambda: (served.metrics.active, served.metrics.connections), (0, 0))


# Up to 16 MiB in one frame, and 4 MiB in frames of 64 bytes to 4 MiB; the quick run takes one size of each.
@pytest.mark.parametrize(
    "cases", [["9.1.3", "9.2.3", "9.3.3", "9.4.3"], pytest.param(["9.1.*", "9.2.*", "9.3.*", "9.4.*"], marks=pytest.mark.long)]
)
def test_large_messages_come_back_whole(served, cases):
    found = outcomes(served.url.replace("http", "ws") + "/echo", *cases)
    assert len(found) >= len(cases)
    assert [case for case in found if not case[1]] == []
