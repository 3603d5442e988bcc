"""What of an item a client sees: some of what tools found is only shown where the request's `include` asks for it."""

from collections.abc import Container

from antiphon.wire.codec.types import Extra, JsonDict, Unknown
from antiphon.wire.responses import items

TOOL_RESULTS = ("file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs")
"""The values of `include` that are about these; everything else is always shown."""

_NULL_FIELDS = {"file_search_call": "results", "code_interpreter_call": "outputs"}


def visible_item(item: items.Item, include: Container[str]) -> items.Item:
    """
    The item as the client gets it. What it does not ask for is stored all the same, and the model keeps reading it.

    Responses: without `include`, `results` and `outputs` are null, and `sources` and the results of a web search are absent.
    """
    # Calls of hosted tools are kept as plain JSON (`_wire_hosted_item`); no other item has any of these fields.
    if not isinstance(item, Unknown):
        return item
    fields = item.extra
    kind = fields.get("type")
    if (name := _NULL_FIELDS.get(str(kind))) is not None:
        return item if f"{kind}.{name}" in include else Unknown(extra=Extra({**fields, name: None}))
    if kind != "web_search_call":
        return item
    visible: JsonDict = dict(fields)
    if "web_search_call.results" not in include:
        visible.pop("results", None)
    action = fields.get("action")
    if isinstance(action, dict) and "web_search_call.action.sources" not in include:
        visible["action"] = {name: value for name, value in action.items() if name != "sources"}
    return Unknown(extra=Extra(visible))
