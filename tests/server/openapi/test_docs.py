"""Every route and every engine is described in the reference."""

from pathlib import Path
from typing import get_args

import pytest
from starlette.routing import Route

from antiphon.runtime.core.engine_types import ENGINES
from antiphon.runtime.service import Service
from antiphon.server.app import routes
from antiphon.wire.realtime.beta_events import BetaClientEvent, BetaServerEvent
from antiphon.wire.realtime.client_events import ClientEvent
from antiphon.wire.realtime.server_events import ServerEvent
from support.server.scripted_server import configured

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def all_routes():
    """The method and the path of each."""
    service = Service(configured(Path("/nowhere"), {}, **{"store.url": "memory"}), print)
    for route in routes(service):
        if isinstance(route, Route):
            for method in sorted((route.methods or {"POST"}) - {"HEAD"}):
                yield method, route.path.replace("{model:path}", "{id}").replace(":path}", "}")


def test_every_route_is_described():
    pages = [
        (REFERENCE / page).read_text()
        for page in (
            "responses-api.md",
            "chat-completions.md",
            "embeddings.md",
            "conversations.md",
            "messages.md",
            "files.md",
            "console.md",
            "containers.md",
            "vector-stores.md",
            "realtime-api.md",
            "audio-api.md",
            "workers.md",
            "recording.md",
            "minicpmo.md",
            "admin.md",
            "queue.md",
        )
    ]
    told = [*all_routes()]
    assert len(told) > 50
    assert [each for each in told if not any("`{} {}`".format(*each) in page for page in pages)] == []


def tags(*events):
    return {each.__struct_config__.tag for event in events for each in get_args(event)}


def test_every_event_of_a_realtime_session_is_described():
    page = (REFERENCE / "realtime-api.md").read_text()
    assert {tag for tag in tags(ClientEvent, ServerEvent) if f"| `{tag}` |" not in page} == set()


def test_every_event_of_the_beta_is_named():
    page = (REFERENCE / "realtime-api.md").read_text()
    received_only = {"transcription_session.created"}  # some servers say so, and this one doesn't
    assert {tag for tag in tags(BetaClientEvent, BetaServerEvent) if f"`{tag}`" not in page} <= received_only


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_page(engine):
    assert (REFERENCE / f"engine-{engine}.md").read_text().startswith(f"# Engine `{engine}`")
