"""Everything that a Realtime session can say is valid to openai-python, strictly, and reads as what it was; in both dialects."""

import json
from typing import Any

import openai.types.beta.realtime as original_beta
import openai.types.realtime as original
import pytest

from antiphon.wire.realtime import beta_events as beta
from antiphon.wire.realtime.client_events import ClientEvent, decode_client, encode_client
from antiphon.wire.realtime.server_events import QueuePosition, ServerEvent, decode_server, encode_server
from support.wire.adapters import adapter
from support.wire.our_samples import alternatives, samples

# The beta's strict type wants a secret, which only its HTTP endpoint gives
SECRET = {"value": "ek_1", "expires_at": 1}
# What the original has no type for, in the beta or in what a client asks, though it takes it
UNTYPED = {"item_reference"}
LATER = {"input_image", "mcp", "mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"}


def without(types: set[str], value: Any) -> Any:
    """What is left of an event's JSON without objects of some types."""
    if isinstance(value, list):
        return [without(types, each) for each in value if not is_one(types, each)]
    if isinstance(value, dict):
        return {name: without(types, each) for name, each in value.items() if not (name == "item" and is_one(types, each))}
    return value


def is_one(types: set[str], value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in types


def as_the_beta_has_it(event: Any, written: bytes) -> bytes | None:
    """What the original's types can tell of an event, if anything."""
    fields = without(LATER, json.loads(written))
    if ("item" not in fields and hasattr(event, "item")) or isinstance(event, QueuePosition):
        return None
    if fields["type"] == "transcription_session.updated":
        fields["session"]["client_secret"] = SECRET
    for group in (fields.get("session", {}), fields.get("response", {})):
        if isinstance(group.get("tool_choice"), dict):
            group["tool_choice"] = "auto"  # the types know strings only, the documentation objects as well
        group.pop("model", None)  # the types know the original's models only
        (group.get("input_audio_transcription") or {}).pop("model", None)
    return json.dumps(fields).encode()


def each_of(union: Any) -> Any:
    return pytest.mark.parametrize("kind", alternatives(union), ids=lambda kind: kind.__name__)


@each_of(ServerEvent)
def test_a_server_event_is_valid(kind):
    for event in samples(kind):
        written = encode_server(event)
        if kind is not QueuePosition:  # ours, which the original has no type for
            adapter(original.RealtimeServerEvent).validate_json(written, strict=True)
        assert decode_server(written) == event


@each_of(ClientEvent)
def test_a_client_event_is_valid(kind):
    for event in samples(kind):
        written = encode_client(event)
        adapter(original.RealtimeClientEvent).validate_json(json.dumps(without(UNTYPED, json.loads(written))), strict=True)
        assert decode_client(written) == event


@each_of(ServerEvent)
def test_a_server_event_is_valid_in_the_beta_or_not_told(kind):
    for event in samples(kind):
        written = beta.encode_server(event)
        if written is None:
            continue
        if known := as_the_beta_has_it(event, written):
            adapter(original_beta.RealtimeServerEvent).validate_json(known, strict=True)
        assert beta.encode_server(beta.decode_server(written)) == written


@each_of(ClientEvent)
def test_a_client_event_is_valid_in_the_beta(kind):
    for event in samples(kind):
        written = beta.encode_client(event)
        if known := as_the_beta_has_it(event, written):
            adapter(original_beta.RealtimeClientEvent).validate_json(known, strict=True)
        assert beta.encode_client(beta.decode_client(written)) == written
