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
    service = Service(configured(Path("/nowhere"), {}, **{"store.url": "memory"}), print)
    return [route for route in routes(service) if isinstance(route, Route)]


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: route.path)
def test_every_route_is_described(route):
    path = route.path.replace("{model:path}", "{id}").replace(":path}", "}")
    methods = sorted((route.methods or {"POST"}) - {"HEAD"})
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
    assert all(any(f"`{method} {path}`" in page for page in pages) for method in methods)


@pytest.mark.parametrize("event", [*get_args(ClientEvent), *get_args(ServerEvent)], ids=lambda event: event.__name__)
def test_every_event_of_a_realtime_session_is_described(event):
    assert f"| `{event.__struct_config__.tag}` |" in (REFERENCE / "realtime-api.md").read_text()


@pytest.mark.parametrize("event", [*get_args(BetaClientEvent), *get_args(BetaServerEvent)], ids=lambda event: event.__name__)
def test_every_event_of_the_beta_is_named(event):
    tag = event.__struct_config__.tag
    received_only = {"transcription_session.created"}  # some servers say so, and this one doesn't
    assert tag in received_only or f"`{tag}`" in (REFERENCE / "realtime-api.md").read_text()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_page(engine):
    assert (REFERENCE / f"engine-{engine}.md").read_text().startswith(f"# Engine `{engine}`")
