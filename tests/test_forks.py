"""A fork is what a new interpreter would be."""

import os
import signal
import subprocess
import sys

import pytest

from support.programs import forks

LOOKS = """
import json, os, signal, sys
signals = {number.name: str(signal.getsignal(number)) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)}
streams = [(each.mode, each.encoding, each.errors, each.line_buffering) for each in (sys.stdin, sys.stdout, sys.stderr)]
print(json.dumps([
    sys.argv, sys.orig_argv[1:], sys.path[0], __name__, sys.stdin.read(), os.getcwd(), sorted(os.environ.items()), signals, streams,
    os.listdir("/proc/self/fd"), os.getppid(), len(os.listdir("/proc/self/task")), os.environ.get("ONE"),
]))
"""
COMMAND = [sys.executable, "-c", LOOKS, "one", "--two"]


def test_a_fork_sees_what_a_new_interpreter_sees(tmp_path):
    environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "LC_CTYPE") if name in os.environ} | {"ONE": "1"}
    assert forks.can_fork(COMMAND, environ)
    options = {"cwd": tmp_path, "env": environ, "text": True, "input": "said", "capture_output": True}
    seen = [forks.run(COMMAND, **options), subprocess.run(COMMAND, preexec_fn=forks.reset_signals, **options)]
    assert seen[0].stdout == seen[1].stdout
    assert [(each.returncode, each.stderr) for each in seen] == [(0, "")] * 2


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import atexit; atexit.register(print, 'end'); print('begin')", 0),
        ("import threading; threading.Timer(0.01, print, ['late']).start()", 0),
    ],
)
def test_it_ends_as_a_new_interpreter_ends(program, code):
    ends = [start([sys.executable, "-c", program], capture_output=True, text=True) for start in (forks.run, subprocess.run)]
    assert [end.returncode for end in ends] == [code] * 2
    assert ends[0].stdout == ends[1].stdout
    assert ends[0].stderr.splitlines()[-1:] == ends[1].stderr.splitlines()[-1:]


def test_it_is_a_child_of_who_asked_in_a_session_of_its_own_and_random_by_itself():
    look = "import os, random, uuid; print(os.getppid(), os.getsid(0) == os.getpid(), random.random(), uuid.uuid4())"
    said = [forks.run([sys.executable, "-c", look], capture_output=True, text=True).stdout.split() for _ in range(2)]
    assert [each[:2] for each in said] == [[str(os.getpid()), "True"]] * 2
    assert said[0][2] != said[1][2] and said[0][3] != said[1][3]


def test_it_ignores_the_signal_that_it_is_to_ignore():
    look = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); print('still here')"
    codes = [forks.run([sys.executable, "-c", look], ignores=each, stdout=subprocess.DEVNULL).returncode for each in (signal.SIGHUP, None)]
    assert codes == [0, -signal.SIGHUP]


def test_other_modules_are_found_by_a_new_interpreter(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('loaded')")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    assert forks.run([sys.executable, "-c", "print('run')"], env=environ, capture_output=True, text=True).stdout == "loaded\nrun\n"


def test_what_it_starts_is_a_fork_too_as_often_as_it_is_told(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        "import os, subprocess, sys\n"
        "look = 'import os, sys; print(os.getppid(), \"antiphon\" in sys.modules)'\n"
        "print(__file__, sys.argv[1:], os.getpid(), flush=True)\n"
        "for _ in range(2):\n"
        "    print(subprocess.run([sys.executable, '-c', look], capture_output=True, text=True).stdout, end='')\n"
    )
    said = forks.run([sys.executable, str(file), "one"], children=[1], capture_output=True, text=True).stdout.splitlines()
    *what, pid = said[0].split()
    assert what == [str(file), "['one']"]
    assert said[1:] == [f"{pid} True", f"{pid} False"]
