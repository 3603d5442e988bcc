"""The tool `file_search` over the vector stores that clients have made."""

import json
from pathlib import Path

import pytest

from antiphon.engine_api.events import HostedToolDone
from antiphon.errors import ClientError
from antiphon.stores.memory import MemoryStore
from antiphon.tool_api import ServerToolCall, ToolEvent, ToolOutput
from antiphon.tools.base import ToolContext
from antiphon.tools.file_search.tool import FileSearch
from antiphon.wire.responses.tools import FileSearchTool
from support.runtime.vector_stages import VectorStage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_tool_finds_and_cites_what_a_tenant_has(tmp_path: Path) -> None:
    async with VectorStage(MemoryStore(), tmp_path) as stage:
        store = await stage.create(await stage.upload("file-1", "Owls hunt at night", "owls.md"))
        await stage.indexed(store.id, "file-1")
        kind = FileSearch(stage.service)
        tool = kind.open(
            [("tools[0]", FileSearchTool(vector_store_ids=[store.id]))], ToolContext(response_id="resp_1", tenant="ada", model="parrot")
        )
        events: list[ToolEvent] = []
        await tool.prepare(events.append)
        call = ServerToolCall(response_id="resp_1", call_id="call_1", name="file_search", arguments=json.dumps({"queries": ["owls night"]}))
        output = await tool.run(call, events.append)
        assert isinstance(output, ToolOutput)
        assert [citation.annotation["file_id"] for citation in output.citations] == ["file-1"]
        done = next(event for event in events if isinstance(event, HostedToolDone))
        assert [(result["file_id"], result["filename"]) for result in done.item["results"]] == [("file-1", "owls.md")]


async def test_a_store_of_another_tenant_is_refused_before_the_model_is_asked(tmp_path: Path) -> None:
    async with VectorStage(MemoryStore(), tmp_path) as stage:
        store = await stage.create()
        context = ToolContext(response_id="resp_1", tenant="bob", model="parrot")
        tool = FileSearch(stage.service).open([("tools[0]", FileSearchTool(vector_store_ids=[store.id]))], context)
        with pytest.raises(ClientError):
            await tool.prepare([].append)
