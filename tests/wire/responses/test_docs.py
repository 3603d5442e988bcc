"""The reference names every type and field that there is."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from antiphon.wire.codec.types import Unknown, Wire
from antiphon.wire.responses.events import StreamEvent
from antiphon.wire.responses.items import Item
from antiphon.wire.responses.parts import Annotation, MessagePart, StreamedPart
from antiphon.wire.responses.profiles import PROFILES
from antiphon.wire.responses.request import CreateRequest, decode_request, encode_request
from antiphon.wire.responses.response import Response
from antiphon.wire.responses.tools import Tool, ToolChoice

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "responses-types.md").read_text()
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])


def rows(section: str) -> list[tuple[str, str]]:
    """The first two cells of each row of a section's tables."""
    cells = [[cell.strip(" `") for cell in line.split("|")] for line in SECTIONS[section].splitlines() if line.startswith("| `")]
    return [(row[1], row[2]) for row in cells if row[1] != "type"]


@pytest.mark.parametrize(
    ("section", "union"),
    [
        ("Content parts", MessagePart),
        ("Content parts", StreamedPart),
        ("Annotations", Annotation),
        ("Items", Item),
        ("Tools", Tool),
        ("Tool choices", ToolChoice),
        ("Events", StreamEvent),
    ],
)
def test_every_type_has_a_row(section, union):
    kinds = [kind for kind in get_args(union) if isinstance(kind, type) and issubclass(kind, Wire) and kind is not Unknown]
    assert {(kind.__struct_config__.tag, kind.__name__) for kind in kinds} <= set(rows(section))


@pytest.mark.parametrize(("section", "kind"), [("Request fields", CreateRequest), ("Response fields", Response)])
def test_every_field_has_a_row_in_its_order(section, kind):
    fields = [field.encode_name for field in msgspec.structs.fields(kind) if field.name != "extra"]
    assert [name for name, _ in rows(section)] == fields


def test_every_profile_has_a_row():
    assert [name for name, _ in rows("Profiles")] == list(PROFILES)


def test_the_example_is_true():
    request = decode_request(b'{"model":"parrot","input":[{"role":"user","content":"Hello"}],"seed":7}')
    assert dict(request.extra) == {"seed": 7}
    assert encode_request(request).startswith(b'{"seed":7,"model":"parrot","input":[{"type":"message",')
