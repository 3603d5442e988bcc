"""A server that is killed again and again loses no completed response, and leaves none unfinished."""

import sys
from pathlib import Path

import pytest

from support.programs import forks

PROGRAM = Path(__file__).parents[2] / "bench" / "crash.py"


@pytest.mark.parametrize(("processes", "kills"), [(2, 2), *[pytest.param(processes, 30, marks=pytest.mark.long) for processes in (1, 2)]])
def test_kills_lose_nothing_and_leave_nothing_stuck(processes, kills):
    command = [sys.executable, str(PROGRAM), "--kills", str(kills), "--processes", str(processes)]
    done = forks.run(command, children=[1, *forks.shared_by(processes)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"| kills | {kills} |" in done.stdout
    assert "| lost | 0 |" in done.stdout
    assert "| stuck | 0 |" in done.stdout
