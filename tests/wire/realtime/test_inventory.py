"""Every event and every field that openai-python has a type for is one of ours, in both dialects."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import openai.types.beta.realtime as original_beta
import openai.types.realtime as original
import pytest
from pydantic import BaseModel

from antiphon.wire.codec.types import Unknown, Wire
from antiphon.wire.realtime.beta_events import BetaClientEvent, BetaServerEvent
from antiphon.wire.realtime.client_events import ClientEvent
from antiphon.wire.realtime.server_events import ServerEvent
from support.wire.openai_samples import samples

SIDES = {
    "GA client": (original.RealtimeClientEvent, ClientEvent),
    "GA server": (original.RealtimeServerEvent, ServerEvent),
    "beta client": (original_beta.RealtimeClientEvent, BetaClientEvent),
    "beta server": (original_beta.RealtimeServerEvent, BetaServerEvent),
}
# Of a part that is a reference to an item, which only the input of a response may have
LEFT_OUT = {"ConversationItemContent.id"}


def flattened(annotation: Any) -> Iterator[Any]:
    """All kinds that a value, a list's member or a map's value may be."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from flattened(args[0])
    elif origin is not None and origin is not Literal:
        for each in args:
            yield from flattened(each)
    else:
        yield annotation


def models(annotation: Any) -> list[type[BaseModel]]:
    return [each for each in flattened(annotation) if isinstance(each, type) and issubclass(each, BaseModel)]


def kinds(annotation: Any) -> list[type[Wire]]:
    return [each for each in flattened(annotation) if isinstance(each, type) and issubclass(each, Wire) and each is not Unknown]


def tags(model: type[BaseModel]) -> set[str]:
    """The values of `type` that an object of the original can have."""
    if "type" not in model.model_fields:
        return set()
    return {value for value in samples(model.model_fields["type"].annotation, False) if isinstance(value, str)}


def like(model: type[BaseModel], ours: list[type[Wire]]) -> list[type[Wire]]:
    """Those of ours that an object of the original can be: by their tags where those tell, else any."""
    wanted = tags(model)
    return [kind for kind in ours if {kind.__struct_config__.tag, *kind.aliases} & wanted] or ours


def missing(model: type[BaseModel], ours: list[type[Wire]], seen: set[Any]) -> Iterator[str]:
    ours = like(model, ours)
    if (model, *ours) in seen:
        return
    seen.add((model, *ours))
    fields: dict[str, list[Any]] = {"type": []}
    for kind in ours:
        hints = get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            fields.setdefault(field.encode_name, []).append(hints[field.name])
    for name, field in model.model_fields.items():
        name = field.alias or name
        if name not in fields:
            yield f"{model.__name__}.{name}"
            continue
        below = [kind for annotation in fields[name] for kind in kinds(annotation)]
        for each in models(field.annotation):
            yield from missing(each, below, seen) if below else ()


@pytest.mark.parametrize("side", SIDES)
def test_no_event_is_missing(side):
    theirs, ours = SIDES[side]
    assert {tag for model in models(theirs) for tag in tags(model)} <= {kind.__struct_config__.tag for kind in kinds(ours)}


@pytest.mark.parametrize("side", SIDES)
def test_no_field_is_missing(side):
    theirs, ours = SIDES[side]
    seen: set[Any] = set()
    assert {name for model in models(theirs) for name in missing(model, kinds(ours), seen)} <= LEFT_OUT
    assert len(seen) > len(models(theirs))


@pytest.mark.parametrize("side", ["GA client", "GA server"])
def test_there_is_no_event_that_the_original_does_not_have_but_for_those_named_after_us(side):
    theirs, ours = SIDES[side]
    names = {kind.__struct_config__.tag for kind in kinds(ours)}
    assert {name for name in names if not name.startswith("antiphon.")} == {tag for model in models(theirs) for tag in tags(model)}
    assert {name for name in names if name.startswith("antiphon.")} == ({"antiphon.queued"} if side == "GA server" else set())
