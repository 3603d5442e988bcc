"""A function as a tool: its schema, and its arguments."""

import dataclasses
import enum
import json
from typing import Annotated, Any, Literal, Optional

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, strategies as st

from antiphon.tools.functions.signature import ToolFunction, UnsuitableFunction, parse_docstring


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclasses.dataclass
class Place:
    """
    Where it is.

    Attributes:
        name: of the town.
    """

    name: str
    latitude: Annotated[float, "degrees north"] = 0.0
    unit: Unit = Unit.CELSIUS


@dataclasses.dataclass
class Node:
    name: str
    children: list["Node"] = dataclasses.field(default_factory=list)


def forecast(
    city: str,
    days: Annotated[int, "how many days"] = 3,
    unit: Unit = Unit.CELSIUS,
    kind: Literal["rain", "wind"] | None = None,
    places: Optional[list[Place]] = None,  # noqa: UP045 - as operators may write it
    weights: dict[str, float] = {},  # noqa: B006
    exact: bool = False,
) -> Any:
    """
    The weather of the next days.

    As the service knows it.

    Args:
        city: the town,
            or the village.
        unit (Unit): of the temperature.

    Returns:
        text
    """
    return locals()


def everything(tool=forecast, **values):
    return ToolFunction(tool).read(json.dumps(values).encode())


def test_a_function_is_told_with_its_types_defaults_and_descriptions():
    tool = ToolFunction(forecast)
    assert (tool.name, tool.description) == ("forecast", "The weather of the next days.\n\nAs the service knows it.")
    place = {
        "type": "object",
        "description": "Where it is.\n\nAttributes:\n    name: of the town.",
        "properties": {
            "name": {"type": "string", "description": "of the town."},
            "latitude": {"type": "number", "default": 0.0, "description": "degrees north"},
            "unit": {"enum": ["c", "f"], "default": "c"},
        },
        "required": ["name"],
    }
    place["description"] = "Where it is."
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "the town, or the village."},
            "days": {"type": "integer", "description": "how many days", "default": 3},
            "unit": {"enum": ["c", "f"], "description": "of the temperature.", "default": "c"},
            "kind": {"anyOf": [{"enum": ["rain", "wind"]}, {"type": "null"}]},
            "places": {"anyOf": [{"type": "array", "items": place}, {"type": "null"}]},
            "weights": {"type": "object", "additionalProperties": {"type": "number"}, "default": {}},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_arguments_become_the_values_that_the_types_say():
    values = everything(city="Berne", unit="f", days=2.0, places=[{"name": "a", "unit": "f"}], weights={"a": 1}, kind="wind")
    assert values == {
        "city": "Berne",
        "unit": Unit.FAHRENHEIT,
        "days": 2,
        "places": [Place("a", unit=Unit.FAHRENHEIT)],
        "weights": {"a": 1.0},
        "kind": "wind",
    }
    assert ToolFunction(forecast).call(everything(city="x"))["days"] == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"city": 1},
        {"city": "x", "town": "y"},
        {"city": "x", "days": "3"},
        {"city": "x", "days": 2.5},
        {"city": "x", "unit": "k"},
        {"city": "x", "places": [{"latitude": 1}]},
        {"city": "x", "exact": 1},
    ],
)
def test_wrong_arguments_are_refused_as_the_schema_says(wrong):
    assert not jsonschema_rs.is_valid(ToolFunction(forecast).parameters, wrong)
    with pytest.raises(msgspec.ValidationError):
        everything(**wrong)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "latitude", "unit", "x"]), inner, max_size=3),
    max_leaves=5,
)
SCHEMA = jsonschema_rs.validator_for(ToolFunction(forecast).parameters)


@given(st.dictionaries(st.sampled_from(["city", "days", "unit", "kind", "places", "weights", "exact", "z"]), JSON, max_size=4))
def test_the_schema_and_the_reader_agree_on_any_json(values):
    try:
        everything(**values)
        is_read = True
    except msgspec.ValidationError:
        is_read = False
    if is_read:
        assert SCHEMA.is_valid(values) or "places" in values  # a class takes fields that it doesn't know
    else:
        assert not SCHEMA.is_valid(values)


def test_a_class_that_contains_itself_is_told_by_reference():
    def walk(root: Node) -> int:
        """Walk."""

    schema = ToolFunction(walk).parameters
    jsonschema_rs.validator_for(schema)
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert everything(walk, root={"name": "a", "children": [{"name": "b"}]}) == {"root": Node("a", [Node("b")])}


def no_docstring(city: str):
    pass


def no_type(city):
    """Text."""


def by_place(city: str, /):
    """Text."""


def many(*cities: str):
    """Text."""


def any_names(**cities: str):
    """Text."""


def strange(city: complex):
    """Text."""


def two_classes(city: Place | Node):
    """Text."""


def unknown(city: "Nowhere"):  # noqa: F821
    """Text."""


def größe(city: str):
    """Text."""


@pytest.mark.parametrize("function", [no_docstring, no_type, by_place, many, any_names, strange, two_classes, unknown, größe])
def test_a_function_that_is_no_tool_is_refused_by_its_name(function):
    with pytest.raises(UnsuitableFunction, match=function.__name__):
        ToolFunction(function)


def test_sphinx_fields_are_read_too():
    text = """
    The weather.

    :param city: the town,
        or the village
    :type city: str
    :param int days: how many
    :returns: text
    """
    assert parse_docstring(text) == ("The weather.", {"city": "the town, or the village", "days": "how many"})


@given(st.text())
def test_any_docstring_is_read(text):
    parse_docstring(text)
