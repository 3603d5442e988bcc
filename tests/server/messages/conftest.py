"""A server for Anthropic's clients."""

import pytest

from antiphon.server.processes.run import background_server
from support.server.scripted_server import SCRIPT, configured


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of a server with the models `parrot`, `plain` (no abilities, and it counts no tokens) and all of `claude-*`."""
    none = dict.fromkeys(["images", "files", "tools", "json_schema", "counts_tokens"], False) | {"efforts": [], "context_window": 50}
    models = {
        "parrot": {"engine": "scripted", **SCRIPT},
        "plain": {"engine": "scripted", "abilities": none},
        "claude-*": {"engine": "scripted", **SCRIPT},
    }
    with background_server(configured(tmp_path_factory.mktemp("home"), models, **{"server.heartbeat_s": 0.05})) as address:
        yield address
