"""The tools that the page offers."""

import httpx2

from antiphon.server.processes.run import background_server
from support.server.scripted_server import SCRIPT, configured


def listed(tmp_path, **settings):
    """What a new server answers."""
    with background_server(configured(tmp_path, {"parrot": {"engine": "scripted", **SCRIPT}}, **settings)) as url:
        return httpx2.get(f"{url}/console/tools")


def test_a_server_lists_its_tools_as_they_stand_in_a_request(tmp_path):
    functions = tmp_path / "functions.py"
    functions.write_text("def stock(item: str) -> int:\n    'How many.'\n    return 3\n")
    answer = listed(
        tmp_path,
        **{
            "tools.mcp": [{"label": "notes", "url": "http://127.0.0.1:1/mcp", "description": "Notes of the team."}],
            "tools.functions": [{"label": "warehouse", "file": str(functions)}],
            "tools.web_search": {"provider": "searxng", "url": "http://127.0.0.1:1"},
        },
    )
    assert answer.headers["cache-control"] == "no-store"
    tools = answer.json()["data"]
    assert {"type": "mcp", "server_label": "notes", "server_description": "Notes of the team."} in tools
    assert {"type": "mcp", "server_label": "warehouse"} in tools
    assert {"type": "web_search"} in tools and {"type": "web_search_preview"} not in tools
    assert "127.0.0.1" not in answer.text and str(tmp_path) not in answer.text


def test_without_configuration_only_what_needs_none_is_listed(tmp_path):
    answer = listed(tmp_path)
    assert {tool["type"] for tool in answer.json()["data"]} <= {"file_search", "code_interpreter"}


def test_without_the_page_there_is_no_such_list(tmp_path):
    assert (listed(tmp_path, **{"server.console": False})).status_code == 404
