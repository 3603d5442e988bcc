"""
A function as a tool: its JSON Schema from type hints and docstring, and its arguments from JSON.

msgspec makes the schema and reads the arguments, so all types that it knows may stand in a hint.
"""

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

MAX_NAME_LENGTH = 64
"""The longest name of a function that model servers accept."""

_NAME = re.compile(rf"[a-zA-Z0-9_]{{1,{MAX_NAME_LENGTH}}}", re.ASCII)
_SECTION = re.compile(r"(Args|Arguments|Parameters|Attributes|Returns?|Yields?|Raises|Examples?|Notes?|Sources?):\s*$")
_ARGUMENT_SECTIONS = ("Args", "Arguments", "Parameters", "Attributes")
_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_FIELD = re.compile(r":param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")
_OTHER_FIELD = re.compile(r":(?:type|returns?|rtype|raises?)\b")


class UnsuitableFunction(Exception):
    """A function can't be a tool; the message tells its author why."""


class Docstring(NamedTuple):
    """
    A docstring in parts.

    Attributes:
        summary: all before the first section.
        arguments: descriptions of arguments, or attributes, by name.
    """

    summary: str
    arguments: Mapping[str, str]


def parse_docstring(text: str) -> Docstring:
    """A docstring with Google's sections (`Args:`), or Sphinx's fields (`:param city:`)."""
    summary: list[str] = []
    arguments: dict[str, list[str]] = {}
    section, indent, lines = "", 0, None  # `lines`: those of the argument that is being read.
    for line in inspect.cleandoc(text).splitlines():
        content = line.strip()
        depth = len(line) - len(line.lstrip())
        if depth == 0 and (match := _SECTION.match(content)):
            section, indent, lines = match[1], 0, None
        elif match := _FIELD.match(content):
            section, lines = "Sphinx", arguments.setdefault(match[1], [match[2]])
        elif _OTHER_FIELD.match(content):
            section, lines = "other", None
        elif not section:
            summary.append(line)
        elif section in _ARGUMENT_SECTIONS and content and depth <= (indent or depth) and (match := _ENTRY.match(content)):
            indent, lines = depth, arguments.setdefault(match[1], [match[2]])
        elif lines is not None and content:
            lines.append(content)
    return Docstring("\n".join(summary).strip(), {name: " ".join(filter(None, texts)) for name, texts in arguments.items()})


class ToolFunction:
    """
    A function that a model may call.

    Attributes:
        module: the name of the module that it is defined in.

    Raises:
        UnsuitableFunction: it has no docstring, a parameter has no type, or a type has no JSON.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.name = function.__name__
        if not _NAME.fullmatch(self.name):
            raise UnsuitableFunction(f"'{self.name}' must be named with at most {MAX_NAME_LENGTH} ASCII letters, digits and '_'")
        if not (function.__doc__ or "").strip():
            raise UnsuitableFunction(f"'{self.name}' has no docstring, which tells the model what it is for")
        self.module = function.__module__
        self._function = function
        docstring = parse_docstring(function.__doc__ or "")
        self.description = docstring.summary
        try:
            self._type = _arguments_type(function, docstring.arguments)
            classes: dict[str, type] = {}
            for hint in typing.get_type_hints(function).values():
                _classes(hint, classes)
            self.parameters = _schema(self._type, inspect.signature(function).parameters, classes)
        except (TypeError, NameError, AttributeError) as error:
            raise UnsuitableFunction(f"'{self.name}' has a type that can't be told to a model: {error}") from None

    def read(self, arguments: bytes) -> dict[str, Any]:
        """
        The arguments as Python values.

        Args:
            arguments: JSON.

        Raises:
            msgspec.ValidationError: they are not as their types say.
            Exception: a class of the operator's refused its values.
        """
        values = msgspec.convert(_integers_from_floats(msgspec.json.decode(arguments)), self._type)
        return {name: value for name in self._type.__struct_fields__ if (value := getattr(values, name)) is not UNSET}

    def call(self, arguments: Mapping[str, Any]) -> object:
        """What the function returns, which may be awaitable."""
        return self._function(**arguments)


def _arguments_type(function: Callable[..., object], descriptions: Mapping[str, str]) -> type[Struct]:
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UnsuitableFunction(f"'{function.__name__}' must take its arguments by name, but not '{parameter}'")
        if parameter.name not in hints:
            raise UnsuitableFunction(f"'{function.__name__}' has no type for '{parameter.name}'")
        hint = _with_description(hints[parameter.name], descriptions.get(parameter.name))
        # An argument that is left out is not passed: so the function's own default counts, whatever it is.
        fields.append((parameter.name, hint) if parameter.default is parameter.empty else (parameter.name, hint | UnsetType, UNSET))
    # An unknown argument is an error, as the function itself would raise one.
    return msgspec.defstruct(function.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _with_description(hint: Any, description: str | None) -> Any:
    """The hint with a description for the schema: that in `Annotated`, or else that of the docstring."""
    if typing.get_origin(hint) is Annotated:
        inner, *notes = typing.get_args(hint)
        texts = [note for note in notes if isinstance(note, str)]
        description = texts[0] if texts else description
        kept_notes = [note for note in notes if isinstance(note, Meta)]
        hint = Annotated[(inner, *kept_notes)] if kept_notes else inner
    return Annotated[hint, Meta(description=description)] if description else hint


def _schema(arguments_type: type[Struct], parameters: Mapping[str, inspect.Parameter], classes: Mapping[str, type]) -> dict[str, Any]:
    (reference,), components = msgspec.json.schema_components([arguments_type])
    schema: dict[str, Any] = components.pop(reference["$ref"].rpartition("/")[2])
    schema.pop("title", None)
    schema["properties"] = {name: _with_default(each, parameters[name]) for name, each in schema["properties"].items()}
    definitions = {name: _component(component, classes.get(name)) for name, component in components.items()}
    try:
        result = _inline(schema, definitions)  # Many model servers don't follow `$ref`.
    except RecursionError:  # A class that contains itself has to stay a reference.
        return {**schema, "$defs": definitions}
    assert isinstance(result, dict)
    return result


def _component(schema: dict[str, Any], kind: type | None) -> dict[str, Any]:
    """The schema of a class, with what its docstring and its hints say of its fields."""
    schema.pop("title", None)
    if kind is None or "properties" not in schema:
        return schema
    docstring = parse_docstring(kind.__doc__ or "")
    if "description" in schema:
        schema["description"] = docstring.summary
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, field in schema["properties"].items():
        notes = typing.get_args(hints.get(name)) if typing.get_origin(hints.get(name)) is Annotated else ()
        text = next((note for note in notes[1:] if isinstance(note, str)), docstring.arguments.get(name))
        if text:
            field.setdefault("description", text)
    return schema


def _classes(hint: Any, classes: dict[str, type]) -> None:
    """Collect the classes in a type hint, at any depth."""
    for argument in typing.get_args(hint):
        _classes(argument, classes)
    if isinstance(hint, type) and getattr(hint, "__annotations__", None) and hint.__name__ not in classes:
        classes[hint.__name__] = hint
        for each in typing.get_type_hints(hint).values():
            _classes(each, classes)


def _with_default(schema: dict[str, Any], parameter: inspect.Parameter) -> dict[str, Any]:
    # A default of None says only that the argument may be left out, which `required` does already.
    if parameter.default is parameter.empty or parameter.default is None:
        return schema
    try:
        return {**schema, "default": msgspec.json.decode(msgspec.json.encode(parameter.default))}
    except (TypeError, ValueError):
        return schema


def _inline(schema: object, components: Mapping[str, dict[str, Any]]) -> object:
    """The schema with its classes where they are named; raises `RecursionError` where one contains itself."""
    if isinstance(schema, list):
        return [_inline(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _inline(value, components) for key, value in schema.items() if key != "$ref"}
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return result
    component = _inline(components[reference.rpartition("/")[2]], components)
    assert isinstance(component, dict)
    # What stands beside the reference, such as the field's own description, counts more than the class's.
    return component | result


def _integers_from_floats(value: object) -> object:
    """Turn 3.0 into 3: JSON has one kind of number, and models write integers so. Beyond 2**53 floats are no exact integers."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case list():
            return [_integers_from_floats(each) for each in value]
        case dict():
            return {name: _integers_from_floats(each) for name, each in value.items()}
        case _:
            return value
