"""A server with keys, and its metrics."""

import time

from prometheus_client.parser import text_string_to_metric_families

from antiphon.runtime.access.keys import make_key
from antiphon.server.processes.run import background_server
from antiphon.stores.sql.store import SqlStore
from support.server.raw_http import POLL_S, exchange, request
from support.server.scripted_server import SCRIPT, configured

MODELS = {
    "parrot": {"engine": "scripted", **SCRIPT},
    "second": {"engine": "scripted", **SCRIPT},
    "endless": {"engine": "scripted", "pace_ms": 5, "answers": [{"lines": [{"text": "la ", "repeat": 100000}]}]},
}


class KeyServer:
    """A server that requires keys."""

    def __init__(self, tmp_path, models=MODELS, **settings):
        self.config = configured(tmp_path, models, **{"logging.level": "error", "server.require_keys": True, **settings})

    async def with_store(self, work):
        store = SqlStore(str(self.config.database_url))
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    async def create_key(self, **fields):
        """A new key, and its record."""
        record, secret = make_key("laptop", now=1, **fields)
        await self.with_store(lambda store: store.keys.add(record))
        return secret, record

    async def key(self, **fields):
        """A new key."""
        return (await self.create_key(**fields))[0]

    def serving(self):
        return background_server(self.config, is_persistent=True)


def numbers(url):
    answer = exchange(url, request(path="/metrics", connection="close")).partition(b"\r\n\r\n")[2]
    families = text_string_to_metric_families(answer.decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def counted(url, key, value):
    """Wait until a metric has a value."""
    while numbers(url).get(key) != value:
        time.sleep(POLL_S)
