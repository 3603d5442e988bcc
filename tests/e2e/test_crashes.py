"""Killed again and again, the server loses nothing that it said was completed, and leaves nothing unfinished."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "bench" / "crash.py"


@pytest.mark.parametrize("processes", [1, 2])
def test_kills_lose_nothing_and_leave_nothing_stuck(processes):
    done = subprocess.run([sys.executable, str(PROGRAM), "--kills", "3", "--processes", str(processes)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| kills | 3 |" in done.stdout
    assert "| lost | 0 |" in done.stdout
    assert "| stuck | 0 |" in done.stdout
