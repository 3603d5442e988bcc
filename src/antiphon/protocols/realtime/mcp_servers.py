"""The MCP servers of a session: their lists of tools are items of the conversation, and their functions the model's."""

from collections.abc import Sequence

from msgspec import Struct, structs

from antiphon.engine_api import events as engine_events
from antiphon.protocols.outbox import Outbox
from antiphon.protocols.realtime.conversation import ConversationEntry, ConversationItems
from antiphon.protocols.session import FromTool, NewId, PrepareTools, ToolFailed, ToolsReady
from antiphon.tool_api import ServerFunction, ToolsListed
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.items import McpListToolsItem
from antiphon.wire.realtime.session import McpTool
from antiphon.wire.responses.hosted_calls import McpListedTool

MAX_SERVERS = 32
"""The most that a session lists; each has a connection."""


class _Listing(Struct):
    """
    A server whose tools are listed, or are being listed.

    Attributes:
        is_told: whether the client knows how it ended.
        is_over: whether the functions are known, or there are none.
    """

    tool: McpTool
    entry: ConversationEntry
    previous_id: str | None
    functions: tuple[ServerFunction, ...] = ()
    is_told: bool = False
    is_over: bool = False


class McpServers:
    """
    Lists the tools of each server once, when the session or a response first names it.

    Args:
        is_available: whether the model can call functions, and so has a use for them.
    """

    def __init__(self, outbox: Outbox[events.ServerEvent], new_id: NewId, conversation: ConversationItems, *, is_available: bool) -> None:
        self._outbox = outbox
        self._new_id = new_id
        self._conversation = conversation
        self._is_available = is_available
        self._listings: dict[str, _Listing] = {}  # by label

    def require(self, tools: Sequence[object], path: str) -> bool:
        """
        Have the servers among `tools` listed that are not. A label that names another server than before is listed again.

        Args:
            path: of the tools, for errors: `session.tools`.

        Returns:
            Whether all are, so that a response can begin.
        """
        servers = [(f"{path}[{index}]", tool) for index, tool in enumerate(tools) if isinstance(tool, McpTool)]
        for tool_path, tool in servers:
            listing = self._listings.get(tool.server_label)
            if listing is None or listing.tool != tool:
                self._list(tool, tool_path)
        return all(self._listings[tool.server_label].is_over for _, tool in servers if tool.server_label in self._listings)

    def functions(self, tools: Sequence[object]) -> tuple[ServerFunction, ...]:
        """The functions of the servers among `tools`, as far as they are listed."""
        labels = [tool.server_label for tool in tools if isinstance(tool, McpTool)]
        return tuple(function for label in labels if label in self._listings for function in self._listings[label].functions)

    def on_tool(self, event: FromTool) -> None:
        """Tell the client how far a list is."""
        listing = next((one for one in self._listings.values() if one.entry.item.id == event.id), None)
        if listing is None or listing.is_over:
            return
        match event.event:
            case engine_events.HostedToolDone(item=item):
                self._complete(listing, item)
            case ToolsListed(functions=functions):
                listing.functions += functions
            case ToolFailed() | ToolsReady():
                self._tell_end(listing, has_failed=True)
                listing.is_over = True
            case _:
                pass

    def _list(self, tool: McpTool, path: str) -> None:
        item = McpListToolsItem(id=self._new_id("mcpl"), server_label=tool.server_label, tools=[])
        entry = ConversationEntry(item)
        listing = _Listing(tool, entry, self._conversation.add(entry))
        is_full = len(self._listings) >= MAX_SERVERS and tool.server_label not in self._listings
        if not is_full:
            self._listings[tool.server_label] = listing
        self._outbox.send(events.ConversationItemAdded, previous_item_id=listing.previous_id, item=item)
        # Realtime: a list is in progress before it completes or fails.
        self._outbox.send(events.McpListToolsInProgress, item_id=item.id)
        if self._is_available and not is_full:
            self._outbox.effects.append(PrepareTools(str(item.id), ((path, tool),)))
        else:
            self._tell_end(listing, has_failed=True)
            listing.is_over = True

    def _complete(self, listing: _Listing, fields: JsonDict) -> None:
        assert isinstance(listing.entry.item, McpListToolsItem)
        listed_tools = [McpListedTool(**tool) for tool in fields["tools"]]
        listing.entry.item = structs.replace(listing.entry.item, tools=listed_tools)
        self._tell_end(listing, has_failed="error" in fields)

    def _tell_end(self, listing: _Listing, *, has_failed: bool) -> None:
        if listing.is_told:
            return
        listing.is_told = True
        item = listing.entry.item
        self._outbox.send(events.McpListToolsFailed if has_failed else events.McpListToolsCompleted, item_id=item.id)
        self._outbox.send(events.ConversationItemDone, previous_item_id=listing.previous_id, item=item)
