"""
Tools that the client runs and sends no schema of, because the original's models know them. Here any model gets the schema
that the original publishes.

Source: the tool reference of the Messages API (bash, text editor, memory, computer use).
"""

from collections.abc import Mapping

from msgspec import Struct

from antiphon.wire.codec.types import JsonDict


class KnownTool(Struct, frozen=True):
    """A tool as the model gets it; `parameters` is a JSON Schema."""

    description: str
    parameters: JsonDict


def _text(description: str) -> JsonDict:
    return {"type": "string", "description": description}


def _number(description: str) -> JsonDict:
    return {"type": "integer", "description": description}


def _choice(*values: str) -> JsonDict:
    return {"type": "string", "enum": list(values)}


def _pair(description: str) -> JsonDict:
    return {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2, "description": description}


def _schema(required_fields: str, fields: JsonDict) -> JsonDict:
    return {"type": "object", "properties": fields, "required": required_fields.split()}


_EDITING: JsonDict = {
    "path": _text("Absolute path of a file or folder."),
    "view_range": _pair("With `view`: the first and the last line, from 1; -1 is the end."),
    "file_text": _text("With `create`: the content of the file."),
    "old_str": _text("With `str_replace`: the text to replace, which stands in the file exactly once."),
    "new_str": _text("With `str_replace`: the text to put in its place."),
    "insert_line": _number("With `insert`: the line after which to insert; 0 is the beginning."),
    "insert_text": _text("With `insert`: the text to insert."),
}

_ACTIONS = (
    "key hold_key type cursor_position mouse_move left_mouse_down left_mouse_up left_click left_click_drag right_click middle_click "
    "double_click triple_click scroll wait screenshot zoom"
)

KNOWN_TOOLS: Mapping[str, KnownTool] = {
    "bash": KnownTool(
        "Runs a command in a shell that stays open.",
        _schema("", {"command": _text("The command."), "restart": {"type": "boolean", "description": "Whether to restart the shell."}}),
    ),
    "text_editor": KnownTool(
        "Views, creates and edits files.",
        _schema("command path", {"command": _choice("view", "create", "str_replace", "insert", "undo_edit"), **_EDITING}),
    ),
    "memory": KnownTool(
        "Keeps notes in files below /memories, which last beyond this conversation.",
        _schema(
            "command",
            {
                "command": _choice("view", "create", "str_replace", "insert", "delete", "rename"),
                **_EDITING,
                "old_path": _text("With `rename`: the path to rename."),
                "new_path": _text("With `rename`: its new name."),
            },
        ),
    ),
    "computer": KnownTool(
        "Uses a computer by its mouse, keyboard and screen.",
        _schema(
            "action",
            {
                "action": _choice(*_ACTIONS.split()),
                "coordinate": _pair("Where to act: x and y in pixels."),
                "start_coordinate": _pair("With `left_click_drag`: where it starts."),
                "text": _text("What to type, or the keys to press, such as `ctrl+s`."),
                "duration": {"type": "number", "description": "Seconds to wait, or to hold the key."},
                "scroll_direction": _choice("up", "down", "left", "right"),
                "scroll_amount": _number("How many clicks of the wheel."),
                "region": {"type": "array", "items": {"type": "integer"}, "description": "With `zoom`: x1, y1, x2, y2."},
            },
        ),
    ),
}
"""By the beginning of their types, before the date: `bash` for `bash_20250124`."""


def known_tool(type: str, fields: Mapping[str, object]) -> KnownTool | None:
    """
    The tool of a `type` such as `bash_20250124`; None for any other.

    Args:
        fields: further ones of the tool, such as the size of a screen.
    """
    name, _, date = type.rpartition("_")
    if not date.isdigit() or (tool := KNOWN_TOOLS.get(name)) is None:
        return None
    width, height = fields.get("display_width_px"), fields.get("display_height_px")
    if not isinstance(width, int) or not isinstance(height, int):
        return tool
    return KnownTool(f"{tool.description} The screen has {width} x {height} pixels.", tool.parameters)
