"""Killed while it makes background streams, the server loses no event that it sent, and changes no end."""

import sys
from pathlib import Path

import pytest

from support.programs import forks

PROGRAM = Path(__file__).parents[2] / "bench" / "background_crashes.py"
LONG = [pytest.param(processes, store, 100, 1000, marks=pytest.mark.long) for processes in (1, 2) for store in ("sqlite", "postgres")]


@pytest.mark.parametrize(("processes", "store", "kills", "responses"), [(2, "postgres", 1, 6), *LONG])
def test_kills_lose_no_event_and_change_no_end(processes, store, kills, responses):
    options = {"--kills": kills, "--responses": responses, "--processes": processes, "--store": store}
    command = [sys.executable, str(PROGRAM), *(str(part) for pair in options.items() for part in pair)]
    done = forks.run(command, children=[2, *forks.shared_by(processes)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"| acknowledged | {responses} |" in done.stdout
    for fault in ("lost", "twice", "stuck", "changed"):
        assert f"| {fault} | 0 |" in done.stdout
