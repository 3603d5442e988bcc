"""From a client's files to the excerpts that the model reads, with the real embedding model."""

import asyncio
import json

import pytest

from antiphon.embeddings.embedder import Embedder
from antiphon.tool_api import ServerToolCall
from antiphon.tools.base import ToolContext
from antiphon.tools.file_search.base import SearchResult
from antiphon.tools.file_search.chunking import Chunking
from antiphon.tools.file_search.filters import allowed_files
from antiphon.tools.file_search.index import Index, Query, make_entry, search
from antiphon.tools.file_search.parsing import Parsers
from antiphon.tools.file_search.tool import FileSearch
from antiphon.wire.responses.tools import decode_tool
from support.tools.documents import docx, paragraph, pdf, pptx

FILES = {
    "tides.pdf": pdf(["High water in the harbour is at twelve minutes past six.", "The ferry does not sail in a storm."]),
    "staff.docx": docx(paragraph("Whom to ask", "Heading1") + paragraph("Payslips: Aylin Demir, until the twentieth of each month.")),
    "pump.pptx": pptx(["The P-440 stirs fish ponds.", "Never lift the P-440 by its cable."]),
    "bread.html": b"<h1>Rye loaf</h1><p>The dough rises twice. It is baked on a stone at 240 degrees.</p>",
    "notes.md": "# 北京\n\n北京大学位于海淀区。".encode(),
}
"""The last one: the university of Beijing is in the district Haidian."""


class OneStore:
    """A vector store of these files, in memory."""

    def __init__(self, folder):
        self._embedder = Embedder(folder)
        self._index = None

    async def check(self, tenant, store_ids):
        parsers, self._index = Parsers(), Index(await self._embedder.dimensions())
        for name, content in FILES.items():
            text = await parsers.parse(content, name)
            self._index.add(await make_entry(name, text, Chunking(), self._embedder))

    async def search(self, tenant, store_ids, queries, *, filters, max_results, ranking):
        vectors = await self._embedder.embed(queries)
        allowed = allowed_files(filters, [(name, name, {"kind": name.rpartition(".")[2]}) for name in FILES])
        asked = [Query(text, vector) for text, vector in zip(queries, vectors, strict=True)]
        matches = search([(self._index, allowed)], asked, ranking, max_results)
        return [SearchResult(file_id=each.file_id, filename=each.file_id, score=each.score, text=each.text) for each in matches]

    async def stop(self):
        await self._embedder.stop()
        self._index.close()


@pytest.mark.weights
def test_each_question_finds_its_file(real_folder):
    questions = {
        "When is the tide at its highest?": "tides.pdf",
        "Who answers questions about my salary?": "staff.docx",
        "How do I carry the P-440?": "pump.pptx",
        "How hot must the oven be?": "bread.html",
        "海淀": "notes.md",
    }

    async def scenario():
        store = OneStore(real_folder)
        tool = decode_tool(b'{"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 2}')
        limit = b'{"type": "ne", "key": "kind", "value": "pdf"}'
        filtering = decode_tool(b'{"type": "file_search", "vector_store_ids": ["vs_1"], "filters": %s}' % limit)
        context = ToolContext(response_id="resp_1", tenant="", model="small")
        kind = FileSearch(store)
        tools = kind.open([("tools[0]", tool)], context), kind.open([("tools[0]", filtering)], context)
        await tools[0].prepare(lambda event: None)

        async def first(open_tool, question):
            call = ServerToolCall(response_id="resp_1", call_id="call_1", name="file_search", arguments=json.dumps([question]))
            output = await open_tool.run(call, lambda event: None)
            return [citation.annotation["filename"] for citation in output.citations]

        try:
            found = {question: (await first(tools[0], question))[0] for question in questions}
            return found, await first(tools[1], "When is the tide at its highest?")
        finally:
            await store.stop()

    found, others = asyncio.run(asyncio.wait_for(scenario(), 120))
    assert found == questions
    assert sorted(others) == sorted(set(FILES) - {"tides.pdf"})
