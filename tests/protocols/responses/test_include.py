"""What tools found is shown to a client that asks for it, and is stored in any case."""

import msgspec
import pytest

from antiphon.engine_api import events
from support.protocols.responses_dialogues import Dialogue, session_for
from support.protocols.words import ID

ACTION = {"type": "search", "query": "q", "queries": ["q"], "sources": [{"type": "url", "url": "https://a.example"}]}

ITEMS = [
    (
        {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "status": "completed", "results": [{"text": "t"}]},
        "results",
        "file_search_call.results",
        None,
    ),
    (
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "code": "1",
            "container_id": "c",
            "status": "completed",
            "outputs": [{"type": "logs", "logs": "1"}],
        },
        "outputs",
        "code_interpreter_call.outputs",
        None,
    ),
    (
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": ACTION},
        "action",
        "web_search_call.action.sources",
        {name: value for name, value in ACTION.items() if name != "sources"},
    ),
]


@pytest.mark.parametrize(("item", "field", "value", "otherwise"), ITEMS)
@pytest.mark.parametrize("asks", [True, False])
def test_what_a_tool_found_is_shown_where_it_is_asked_for(item, field, value, otherwise, asks):
    dialogue = Dialogue(session_for(include=[value] if asks else None))
    dialogue.said(events.HostedToolStarted(ID, item), events.HostedToolDone(ID, item), events.ResponseEnded(ID))
    [done] = [event["item"] for event in dialogue.events if event["type"] == "response.output_item.done"]
    assert done[field] == dialogue.events[-1]["response"]["output"][0][field] == (item[field] if asks else otherwise)
    [stored] = [record for record in dialogue.kept if record.status == "completed"]
    assert msgspec.json.decode(stored.items[-1].body)[field] == item[field]
    assert msgspec.json.decode(stored.body)["output"][0][field] == item[field]
