"""
The server's search for tools: those whose loading was deferred stay hidden until the model asks for them by name.

Names, and what functions outside of namespaces do, are told to the model from the start, as in the original; the schemas,
which are long, only once they are asked for.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from antiphon.engine_api.options import FunctionTool, Tool
from antiphon.tool_api import decode_arguments
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.types import JsonDict, encode
from antiphon.wire.responses import tools

SEARCH_NAME = "tool_search"
MAX_DESCRIPTION_CHARS = 300
MAX_MATCHES = 5
"""The most tools that a search by words, rather than by a name, loads."""


class DeferredTool(Struct, frozen=True):
    """
    A tool that is loaded when it is asked for.

    Attributes:
        tool: as the engine gets it then.
        wire: as the client is shown it then, without its namespace.
    """

    tool: Tool
    wire: tools.FunctionTool | tools.CustomTool

    @property
    def text(self) -> str:
        """The text that words are searched in."""
        return f"{self.tool.key} {self.tool.description or ''}".lower()


class FoundTools(Struct, frozen=True):
    """
    What a search has come to.

    Attributes:
        arguments: as the item shows them.
        output: the tools as the item shows them, those of a namespace in it.
        text: what the model reads.
    """

    arguments: JsonDict
    tools: Sequence[Tool]
    output: Sequence[JsonDict]
    text: str


class ToolSearch:
    """
    The search of one response.

    Args:
        namespaces: the descriptions of namespaces, and of the MCP servers whose tools are deferred.
        labels: of those servers; their tools are added when they are listed.
        loaded_keys: those of tools that were found earlier in the conversation.
    """

    def __init__(self, namespaces: dict[str, str], labels: frozenset[str], loaded_keys: frozenset[str]) -> None:
        self._namespaces = namespaces
        self._labels = labels
        self._loaded_keys = set(loaded_keys)
        self._deferred_tools: dict[str, DeferredTool] = {}

    def __bool__(self) -> bool:
        # Servers that are not listed yet bring their tools later.
        return bool(self._deferred_tools or self._labels)

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that can be found."""
        return [each.tool for each in self._deferred_tools.values()]

    @property
    def function(self) -> FunctionTool:
        """The search as a function; its description names all that can be found."""
        plain = [_line(each.tool.name, each.tool.description) for each in self._deferred_tools.values() if not each.tool.namespace]
        groups = dict.fromkeys(
            [*sorted(self._labels), *(each.tool.namespace for each in self._deferred_tools.values() if each.tool.namespace)]
        )
        lines = [*(_line(name, self._namespaces.get(name), "a group of tools: ") for name in groups), *plain]
        description = (
            "Loads tools, which can be called from then on. Name them in `paths`: a tool, a group, or a tool in a group with a dot."
        )
        paths = {"type": "array", "items": {"type": "string"}, "description": "Which to load."}
        parameters = {"type": "object", "properties": {"paths": paths}, "required": ["paths"], "additionalProperties": False}
        return FunctionTool(SEARCH_NAME, "\n".join([description, *lines]), parameters)

    def hides(self, key: str, namespace: str | None) -> bool:
        """Whether a function of an MCP server is deferred and was not found yet."""
        return namespace in self._labels and key not in self._loaded_keys

    def add(self, tool: DeferredTool) -> None:
        """Add a tool that can be found."""
        self._deferred_tools[tool.tool.key] = tool

    def add_function(self, function: FunctionTool) -> None:
        """Add a function of a server that can be found."""
        wire = tools.FunctionTool(
            name=function.name, description=function.description, parameters=function.parameters, strict=False, defer_loading=True
        )
        self.add(DeferredTool(function, wire))

    def find(self, arguments: str) -> FoundTools:
        """Find the tools that the model asks for, and load them: they can't be found again."""
        paths = _paths(arguments)
        found_tools: dict[str, DeferredTool] = {}
        for path in paths:
            found_tools |= self._find(path)
        for key in found_tools:
            del self._deferred_tools[key]
        self._loaded_keys |= found_tools.keys()
        if found_tools:
            text = f"These tools are loaded, and can be called now: {', '.join(found_tools)}."
        else:
            text = "No tool was found. Give names as they stand in the description of this tool."
        return FoundTools({"paths": paths}, [each.tool for each in found_tools.values()], list(self._output(found_tools.values())), text)

    def _find(self, path: str) -> dict[str, DeferredTool]:
        name = path.replace("__", ".").replace("/", ".")
        for key in (path, name):
            if key in self._deferred_tools:
                return {key: self._deferred_tools[key]}
        if group := {key: each for key, each in self._deferred_tools.items() if each.tool.namespace in (path, name)}:
            return group
        # Small models rarely copy a name (docs/decisions/0057).
        words = set(re.findall(r"\w{3,}", path.lower()))
        scores = {key: sum(word in each.text for word in words) for key, each in self._deferred_tools.items()}
        best = sorted((key for key, score in scores.items() if score), key=lambda key: -scores[key])
        return {key: self._deferred_tools[key] for key in best[:MAX_MATCHES]}

    def _output(self, found_tools: Iterable[DeferredTool]) -> Iterable[JsonDict]:
        groups: dict[str, list[JsonDict]] = {}
        for each in found_tools:
            definition = _definition(each.wire)
            if each.tool.namespace is None:
                yield definition
            else:
                groups.setdefault(each.tool.namespace, []).append(definition)
        for name, members in groups.items():
            yield {"type": "namespace", "name": name, "description": self._namespaces.get(name, ""), "tools": members}


def _definition(wire: tools.FunctionTool | tools.CustomTool) -> JsonDict:
    """The tool with the keys that strict clients require."""
    definition: JsonDict = msgspec.json.decode(encode(wire))
    if isinstance(wire, tools.CustomTool):
        return definition
    defaults = {"description": None, "parameters": None, "strict": value_or(wire.strict, False)}
    return defaults | {name: value for name, value in definition.items() if value is not None}


def _line(name: str, description: str | None, kind: str = "") -> str:
    text = " ".join((description or "").split())
    return f"- {name}: {kind}{text if len(text) <= MAX_DESCRIPTION_CHARS else text[:MAX_DESCRIPTION_CHARS] + '…'}"


def _paths(arguments: str) -> list[str]:
    """The names that the model asks for, in whatever form it wrote them."""
    try:
        value = decode_arguments(arguments or "{}")
    except ValueError:
        return []
    if isinstance(value, dict):
        value = value.get("paths", next(iter(value.values()), None))
    values = value if isinstance(value, list) else [value]
    return [path for path in values if isinstance(path, str) and path]
