"""
Tools that the client runs and sends no schema of, because the original's models know them: shells, patches, computers,
its own search for tools. Here any model gets each as a function, and its call becomes the item that the client expects.

Source: the types of the Responses API, whose items have the same fields.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec
from msgspec import Struct

from antiphon.engine_api.options import FunctionTool
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.types import JsonDict, Tagged
from antiphon.wire.responses import hosted_calls as calls, tools

ClientCallItem = calls.LocalShellCall | calls.ShellCall | calls.ApplyPatchCall | calls.ComputerCall | calls.ToolSearchCall
CLIENT_ITEM_TYPES = (
    calls.LocalShellCall,
    calls.LocalShellCallOutput,
    calls.ShellCall,
    calls.ShellCallOutput,
    calls.ApplyPatchCall,
    calls.ApplyPatchCallOutput,
    calls.ComputerCall,
    calls.ComputerCallOutput,
    calls.ToolSearchCall,
    calls.ToolSearchOutput,
)
"""The items that such tools make; any engine with functions can read them as calls and results."""


class ClientTool(Struct, frozen=True):
    """
    A tool of a request that the client runs.

    Attributes:
        tool: as the request has it.
        function: what the model gets.
        id_prefix: of its items.
        read: the fields of its item, from the arguments that the model wrote; raises `ValueError` for what is wrong with
            them.
        unknown: the fields of an item whose arguments are not known yet; None for one that can't be shown without.
    """

    tool: tools.Tool
    function: FunctionTool
    item: Callable[..., ClientCallItem]
    id_prefix: str
    read: Callable[[JsonDict], JsonDict]
    unknown: JsonDict | None = None

    @property
    def type(self) -> str:
        """The tool's type in requests."""
        return self.tool.type


def client_tool(tool: tools.Tool) -> ClientTool | None:
    """What the model is given of a tool that the client runs; None for any other tool."""
    builder = _BUILDERS.get(type(tool))
    return None if builder is None else builder(tool)


def choice_types(type: str) -> tuple[str, ...]:
    """The types by which a `tool_choice` may name a tool of this type."""
    return _COMPUTER_TYPES if type in _COMPUTER_TYPES else (type,)


_COMPUTER_TYPES = ("computer", "computer_use", "computer_use_preview")


def _object(required_names: str, properties: JsonDict) -> JsonDict:
    return {"type": "object", "properties": properties, "required": required_names.split(), "additionalProperties": False}


def _text(description: str) -> JsonDict:
    return {"type": "string", "description": description}


def _integer(description: str) -> JsonDict:
    return {"type": "integer", "description": description}


def _texts(description: str) -> JsonDict:
    return {"type": "array", "items": {"type": "string"}, "description": description}


_TIMEOUT = _integer("After how many milliseconds to stop it.")


def _convert(fields: JsonDict, kind: Any) -> Any:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _list_of_texts(value: object, name: str) -> list[str]:
    """A list of texts; models also write a single text where one is enough."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"`{name}` must be a list of one or more texts")
    return texts


def _present(fields: JsonDict, *names: str) -> JsonDict:
    return {name: fields[name] for name in names if fields.get(name) is not None}


# Shells

_LOCAL_SHELL = _object(
    "command",
    {
        "command": _texts('The program and its arguments, such as `["ls", "-l"]`; for a line of a shell `["bash", "-lc", "..."]`.'),
        "env": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Variables of its environment."},
        "working_directory": _text("The folder to run it in."),
        "timeout_ms": _TIMEOUT,
        "user": _text("The user to run it as."),
    },
)


def _read_local_shell(arguments: JsonDict) -> JsonDict:
    optional_fields = _present(arguments, "timeout_ms", "user", "working_directory")
    action = {"type": "exec", "command": _list_of_texts(arguments.get("command"), "command"), "env": arguments.get("env") or {}}
    return {"action": _convert(action | optional_fields, calls.ExecAction)}


def _local_shell(tool: tools.LocalShellTool) -> ClientTool:
    function = FunctionTool("local_shell", "Runs a command on the user's machine.", _LOCAL_SHELL)
    return ClientTool(tool, function, calls.LocalShellCall, "lsh", _read_local_shell, {"action": calls.ExecAction(command=[], env={})})


SHELL_PARAMETERS = _object(
    "commands",
    {
        "commands": _texts("Lines for the shell; they are run side by side, each in a shell of its own."),
        "timeout_ms": _TIMEOUT,
        "max_output_length": _integer("How many characters of the output of each to return."),
    },
)


def read_shell_action(arguments: JsonDict) -> calls.ShellAction:
    """
    The action of a shell's call, with null for what the model left open.

    Raises:
        ValueError: the arguments have none.
    """
    # The commands may have been shown already, so a limit that is no number is dropped, and no reason to refuse the call.
    length, timeout_ms = (value if type(value := arguments.get(name)) is int else None for name in ("max_output_length", "timeout_ms"))
    commands = _list_of_texts(arguments.get("commands", arguments.get("command")), "commands")
    return calls.ShellAction(commands=commands, max_output_length=length, timeout_ms=timeout_ms)


def _shell(tool: tools.ShellTool) -> ClientTool | None:
    environment = value_or(tool.environment, None) or tools.LocalEnvironment()
    if not isinstance(environment, tools.LocalEnvironment):
        return None
    description = "Runs commands in a shell on the user's machine."
    skills = [f"- {skill.name}: {skill.description} (in {skill.path})" for skill in environment.skills or ()]
    if skills:
        description += "\n\nSkills are folders with instructions; read `SKILL.md` there before you use one:\n" + "\n".join(skills)
    # Responses: a call says where it is to be run, and not which skills are there.
    place = {"environment": tools.LocalEnvironment()}
    unknown = place | {"action": calls.ShellAction(commands=[], max_output_length=None, timeout_ms=None)}
    return ClientTool(
        tool,
        FunctionTool("shell", description, SHELL_PARAMETERS),
        calls.ShellCall,
        "sh",
        lambda arguments: place | {"action": read_shell_action(arguments)},
        unknown,
    )


# Patches

_PATCH = _object(
    "type path",
    {
        "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        "path": _text("The file."),
        "diff": _text(
            "With `create_file`: its content, each line with a `+` before it. With `update_file`: hunks, each after a line `@@`, "
            "in which lines of the file have a blank before them, lines to remove a `-`, and new lines a `+`."
        ),
    },
)


def _read_patch(arguments: JsonDict) -> JsonDict:
    # Models that know the item write its fields; others write those of the function.
    operation = arguments.get("operation", arguments)
    if not isinstance(operation, dict):
        raise ValueError("`type` and `path` are missing")
    kind = operation.get("type")
    if kind not in ("create_file", "update_file", "delete_file"):
        raise ValueError("`type` must be one of `create_file`, `update_file` and `delete_file`")
    # The item of a deletion has no diff, whatever the model wrote.
    fields = _present(operation, "type", "path") | ({} if kind == "delete_file" else _present(operation, "diff"))
    return {"operation": _convert(fields, calls.CreateFile | calls.DeleteFile | calls.UpdateFile)}


def _apply_patch(tool: tools.ApplyPatchTool) -> ClientTool:
    function = FunctionTool("apply_patch", "Creates, changes or deletes a file of the user's.", _PATCH)
    return ClientTool(tool, function, calls.ApplyPatchCall, "apc", _read_patch)


# Computers

_ACTION: JsonDict = {
    "type": "object",
    "properties": {
        "type": {
            "type": "string",
            "enum": ["click", "double_click", "drag", "keypress", "move", "screenshot", "scroll", "type", "wait"],
        },
        "x": _integer("Where, in pixels from the left: with `click`, `double_click`, `move` and `scroll`."),
        "y": _integer("Where, in pixels from the top."),
        "button": {"type": "string", "enum": ["left", "right", "wheel", "back", "forward"], "description": "With `click`."},
        "keys": _texts('With `keypress`: keys pressed together, such as `["CTRL", "C"]`; else keys held meanwhile.'),
        "text": _text("With `type`: what to type."),
        "scroll_x": _integer("With `scroll`: how far to the right, in pixels."),
        "scroll_y": _integer("With `scroll`: how far down, in pixels."),
        "path": {
            "type": "array",
            "items": _object("x y", {"x": {"type": "integer"}, "y": {"type": "integer"}}),
            "description": "With `drag`: the places that it passes.",
        },
    },
    "required": ["type"],
}

_ACTIONS: Mapping[str, type[Tagged]] = {str(kind.__struct_config__.tag): kind for kind in get_args(calls.ComputerAction)}

_ACTION_DEFAULTS: Mapping[str, JsonDict] = {"scroll": {"scroll_x": 0, "scroll_y": 0}, "click": {"button": "left"}}

_COMPUTER_TEXT = "Uses the user's computer by its mouse and keyboard. The result is a screenshot."


def _action(value: object) -> Any:
    """An action, with what the types require and models leave out."""
    kind = _ACTIONS.get(str(value.get("type"))) if isinstance(value, dict) else None
    if kind is None or not isinstance(value, dict):
        raise ValueError(f"an action must be an object whose `type` is one of {', '.join(_ACTIONS)}")
    defaults = _ACTION_DEFAULTS.get(str(value["type"]), {})
    return _convert(defaults | _present(value, "type", *kind.__struct_fields__), kind)


def _read_actions(arguments: JsonDict) -> JsonDict:
    actions = arguments.get("actions", arguments.get("action"))
    actions = [actions] if isinstance(actions, dict) else actions
    if not isinstance(actions, list) or not actions:
        raise ValueError("`actions` must be a list of one or more actions")
    return {"actions": [_action(action) for action in actions], "pending_safety_checks": []}


def _computer(tool: tools.ComputerTool) -> ClientTool:
    parameters = _object("actions", {"actions": {"type": "array", "items": _ACTION, "description": "What to do, in this order."}})
    function = FunctionTool("computer", _COMPUTER_TEXT, parameters)
    return ClientTool(tool, function, calls.ComputerCall, "cu", _read_actions, {"actions": [], "pending_safety_checks": []})


def _read_action(arguments: JsonDict) -> JsonDict:
    return {"action": _action(arguments.get("action", arguments)), "pending_safety_checks": []}


def _computer_preview(tool: tools.ComputerUsePreviewTool) -> ClientTool:
    screen = f"It is a {tool.environment} environment with a screen of {tool.display_width} x {tool.display_height} pixels."
    function = FunctionTool("computer", f"{_COMPUTER_TEXT} {screen}", _object("action", {"action": _ACTION}))
    return ClientTool(tool, function, calls.ComputerCall, "cu", _read_action, {"pending_safety_checks": []})


# The client's search for tools

_QUERY = _object("query", {"query": _text("What the tools should be able to do.")})


def _tool_search(tool: tools.ToolSearchTool) -> ClientTool | None:
    # Without `client`, the server does the search (`search.ToolSearch`).
    if tool.execution != "client":
        return None
    description = value_or(tool.description, None) or "Finds further tools, which can be called from then on."
    parameters = tool.parameters if isinstance(tool.parameters, dict) else _QUERY
    function = FunctionTool("tool_search", description, parameters)
    unknown: JsonDict = {"execution": "client", "arguments": {}}
    return ClientTool(
        tool, function, calls.ToolSearchCall, "tsc", lambda arguments: {"execution": "client", "arguments": arguments}, unknown
    )


_BUILDERS: Mapping[type, Callable[[Any], ClientTool | None]] = {
    tools.LocalShellTool: _local_shell,
    tools.ShellTool: _shell,
    tools.ApplyPatchTool: _apply_patch,
    tools.ComputerTool: _computer,
    tools.ComputerUsePreviewTool: _computer_preview,
    tools.ToolSearchTool: _tool_search,
}
