"""The suites of official clients, each in an environment of its own; `conformance/README.md` lists what they test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).parents[2] / "conformance" / "run.py"
PROGRAM = Path(sys.executable).with_name("antiphon")


@pytest.mark.first
@pytest.mark.weights
def test_the_clients_of_each_protocol_agree(record_property):
    _run(record_property, "--short")


@pytest.mark.long
@pytest.mark.weights
def test_frameworks_programs_and_browsers_agree(record_property):
    _run(record_property, "--long")


@pytest.mark.long
@pytest.mark.weights
def test_tools_of_the_server_agree_whole_and_streamed_in_every_way(record_property):
    _run(record_property, "langchain", "openai_agents", "openai_node")


def _run(record_property, *options):
    command = [sys.executable, str(SUITES), str(PROGRAM), "smollm2-135m-instruct", *options]
    # Other tests leave out the walls of the code interpreter; these run code.
    environ = {name: value for name, value in os.environ.items() if name != "ANTIPHON_TOOLS__CODE_INTERPRETER__SANDBOX"}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    for line in done.stdout.splitlines():
        if line.startswith(("conformance:", "skipped:")):
            record_property("report", line)
