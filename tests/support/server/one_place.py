"""A server whose model has one place: a worker with one slot, which joined it."""

import asyncio
import contextlib
import threading
from pathlib import Path

from antiphon.config.load import ModelEntry
from antiphon.engine_api.engine import BuildContext
from antiphon.runtime.balancing.build import build_engine
from antiphon.runtime.workers.client import JoinTimeouts, WorkerClient
from antiphon.server.processes.run import background_server
from antiphon.wire.internal.worker_link import VERSION, Hello
from support.server.raw_http import PATIENCE_S
from support.server.scripted_server import configured

WORKER_KEY = "a key that workers have"
MODEL = "far"


class OnePlace:
    """
    The server.

    Attributes:
        url: its address.
    """

    def __init__(self, url, engine):
        self.url = url
        self._joined = threading.Event()
        self._begun = threading.Event()
        self._hello = Hello(version=VERSION, abilities=engine.capabilities, model=MODEL, slots=1, name="testing")
        self._engine = engine
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))
        self._thread.start()
        assert self._begun.wait(PATIENCE_S) and self._joined.wait(PATIENCE_S)

    async def _run(self):
        self._loop = asyncio.get_running_loop()
        timeouts = JoinTimeouts(backoff_s=(0.01,), drain_s=5)
        self._client = WorkerClient(self._engine, self._hello, self.url.replace("http", "ws"), WORKER_KEY, self._notice, timeouts=timeouts)
        self._begun.set()
        await self._client.run()

    def _notice(self, line):
        if "joined" in line.lower():
            self._joined.set()

    def remove_worker(self):
        """Let it leave, and wait until it has."""
        self._loop.call_soon_threadsafe(self._client.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def serving_one_place(tmp_path, script=None, **settings):
    """A server with the model `far`; `script` is of the engine `scripted` on its worker."""
    (tmp_path / "worker.key").write_text(WORKER_KEY)
    config = configured(tmp_path, {MODEL: {"engine": "worker"}}, **{"logging.level": "error", **settings})
    config._secrets["ANTIPHON_WORKER_KEY"] = WORKER_KEY
    context = BuildContext(weights_folder=tmp_path, base_folder=Path(), secrets={}, notice=print)
    engine = build_engine(ModelEntry(name=MODEL, engine="scripted", options=script or {}), context, lambda name: None)
    with background_server(config, is_persistent=True) as url:
        place = OnePlace(url, engine)
        try:
            yield place
        finally:
            if place._thread.is_alive():
                place.remove_worker()
