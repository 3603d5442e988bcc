"""The exit codes of the program."""

import io
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from antiphon import __version__
from antiphon.cli.common.shell import Shell
from antiphon.cli.main import COMMANDS, run

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_without_arguments_it_says_what_it_can_do(antiphon):
    result = antiphon()
    assert result.code == 0
    assert "antiphon ask" in result.out


@pytest.mark.parametrize("arguments", [["bogus"], ["serve", "--prt", "1"], ["ask"], ["serve", "--port", "many"]])
def test_what_it_does_not_understand_is_one_line_and_code_2(antiphon, arguments):
    result = antiphon(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("antiphon: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("listing", ["keys list", "prompts list", "webhooks list", "webhooks deliveries"])
def test_an_empty_list_is_json_too(antiphon, listing):
    assert antiphon(*listing.split(), "--json").json == []


def test_a_misspelt_option_is_answered_with_the_right_one(antiphon):
    assert "--port" in antiphon("serve", "--prt", "1").err


def test_a_mistake_in_the_configuration_is_code_2(antiphon, home):
    (home / "antiphon.toml").write_text("[server]\nprot = 1\n")
    result = antiphon("config", "check")
    assert result.code == 2
    assert "did you mean 'port'" in result.err


def test_a_configuration_file_that_is_not_there_is_code_2(antiphon):
    result = antiphon("serve", "--config", "absent.toml")
    assert result.code == 2
    assert "there is no such file" in result.err


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_left_is_no_error_worth_a_word():
    err = io.StringIO()
    shell = Shell(environ={}, cwd=Path("/"), stdin=io.StringIO(), stdout=Gone(), stderr=err)
    assert run(["version"], shell) == 141
    assert err.getvalue() == ""


class Impatient(io.StringIO):
    def read(self, _size: int | None = -1) -> str:
        raise KeyboardInterrupt


def test_an_interruption_ends_it_without_a_word():
    err = io.StringIO()
    shell = Shell(environ={}, cwd=Path("/"), stdin=Impatient(), stdout=io.StringIO(), stderr=err)
    assert run(["ask", "-"], shell) == 130
    assert err.getvalue() == ""


INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == "antiphon.cli.common.shell":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""
ENTRY = "from {} import {} as main; main()".format(*tomllib.loads(PROJECT.read_text())["project"]["scripts"]["antiphon"].split(":"))


def interrupted_while_loading(handler):
    # What these tests run in may have been started in the background, where interruptions are ignored.
    script = (
        f"import signal; signal.signal(signal.SIGINT, signal.{handler})\n{INTERRUPTED_WHILE_LOADING}\nsys.argv[1:] = ['version']\n{ENTRY}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_an_interruption_while_it_loads_ends_it_without_a_word():
    assert interrupted_while_loading("default_int_handler") == (130, "", "")


def test_where_interruptions_are_ignored_they_are_while_it_loads_too():
    assert interrupted_while_loading("SIG_IGN") == (0, f"{__version__}\n", "")


def test_both_ways_to_ask_for_the_version_agree(antiphon):
    assert antiphon("version").out == antiphon("--version").out == f"{__version__}\n"
    assert antiphon("version", "--json").json["version"] == __version__


def test_it_is_a_module_too():
    done = subprocess.run([sys.executable, "-m", "antiphon", "version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{__version__}\n"


def test_a_real_pipe_may_close_early():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m antiphon config schema | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout in ("141\n", "0\n")  # 0 where the whole schema fitted into the pipe before it closed
    assert done.stderr == ""


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&- <&-", *[pytest.param(each, marks=pytest.mark.long) for each in ("2>&-", "<&-")]])
@pytest.mark.parametrize("command", ["models list", *[pytest.param(each, marks=pytest.mark.long) for each in ("--help", "keys list")]])
def test_streams_that_are_closed_are_no_error(command, redirection, tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m antiphon {command} {redirection}"],
        capture_output=True,
        text=True,
        env={**os.environ, "ANTIPHON_HOME": str(tmp_path)},
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_a_terminal_that_does_not_know_its_width_is_one_of_80_columns():
    outer, inner = pty.openpty()  # its size is 0 by 0
    with os.fdopen(outer, "rb", buffering=0) as reader, os.fdopen(inner, "w") as terminal:
        shell = Shell(environ={}, cwd=Path("/"), stdin=io.StringIO(), stdout=terminal, stderr=io.StringIO())
        shell.say_rows([("name", "word " * 30)])
        assert shell.columns == 80
        assert max(map(len, reader.read(4096).split(b"\r\n"))) <= 80


def test_help_loads_neither_the_settings_nor_the_server():
    heavy = ("pydantic", "starlette", "uvicorn", "sqlalchemy", "aiohttp", "xllamacpp")
    script = "import sys; import antiphon.cli.main as m; m.build_app(); print([name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_says_of_each_what_its_own_help_says(antiphon, command):
    _path, summary = COMMANDS[command]
    _usage, text, *_rest = antiphon(command, "--help").out.split("\n\n")
    assert " ".join(text.split()) == summary
