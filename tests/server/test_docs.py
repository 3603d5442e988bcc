"""Every route and every engine is described in the reference."""

from pathlib import Path

import pytest
from scripted_server import configured
from starlette.routing import Route

from antiphon.runtime.registry import ENGINES
from antiphon.runtime.service import Service
from antiphon.server.app import routes

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def all_routes():
    service = Service(configured(Path("/nowhere"), {}, **{"store.url": "memory"}), print)
    return [route for route in routes(service) if isinstance(route, Route)]


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: route.path)
def test_every_route_is_described(route):
    path = route.path.replace("{model:path}", "{id}")
    methods = sorted((route.methods or {"POST"}) - {"HEAD"})
    page = (REFERENCE / "responses-api.md").read_text()
    assert all(f"`{method} {path}`" in page for method in methods)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_page(engine):
    assert (REFERENCE / f"engine-{engine}.md").read_text().startswith(f"# Engine `{engine}`")
