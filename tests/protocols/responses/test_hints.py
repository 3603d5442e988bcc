"""Hints, which every engine's client may send, and parameters that change the meaning of a response."""

import re
from pathlib import Path

import msgspec
import pytest

from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError
from antiphon.protocols.responses.request import ResolvedRequest, engine_request
from antiphon.wire.responses import items
from antiphon.wire.responses.request import CreateRequest, decode_request

REFERENCE = Path(__file__).parents[3] / "docs/reference/responses-api.md"

NOTHING = Capabilities(temperature=False, top_p=False)
SOME = Capabilities(efforts=("low", "high"), verbosities=("medium", "high"))


def asked(capabilities=NOTHING, **fields):
    """The request to an engine that can do that."""
    return engine_request(
        ResolvedRequest(
            id="resp_1",
            tenant="t",
            created_at=1,
            model="m",
            request=decode_request(msgspec.json.encode({"input": "Hi", **fields})),
            capabilities=capabilities,
            input_items=(items.Message(role="user", content="Hi"),),
        )
    ).respond


def refusal(capabilities=NOTHING, **fields):
    with pytest.raises(ClientError) as refused:
        asked(capabilities, **fields)
    return refused.value


HINTS = [
    *({"reasoning": {name: wish}} for name in ("summary", "generate_summary") for wish in ("auto", "concise", "detailed")),
    *({"reasoning": {"effort": effort}} for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")),
    *({"text": {"verbosity": verbosity}} for verbosity in ("low", "medium", "high")),
    *[{"reasoning": {"context": "all_turns", "mode": "pro"}}, {"truncation": "auto"}, {"truncation": "disabled"}],
    *[{"context_management": [{"type": "compaction", "compact_threshold": 1000}]}, {"image": {"context_compression": "enabled"}}],
    *[{"access_programs": {"cyber": "standard"}}, {"access_programs": {}}],
    *[{"include": ["reasoning.encrypted_content", "web_search_call.results"]}, {"max_tool_calls": 1}],
    *[{"prompt_cache_key": "k"}, {"prompt_cache_retention": "24h"}, {"prompt_cache_options": {"mode": "explicit"}}],
    *[{"service_tier": "flex"}, {"safety_identifier": "s"}, {"user": "u"}, {"metadata": {"k": "v"}}],
    *[{"temperature": 1}, {"top_p": 1.0}, {"presence_penalty": 0}, {"frequency_penalty": 0}, {"top_logprobs": 0}],
]


@pytest.mark.parametrize("fields", HINTS, ids=str)
def test_an_engine_that_can_not_act_on_a_hint_is_asked_without_it(fields):
    respond = asked(**fields)
    hints = (respond.reasoning_effort, respond.reasoning_summary, respond.verbosity, respond.truncate)
    assert hints == (None, None, None, False)


def test_an_engine_that_can_act_on_a_hint_gets_it():
    able = Capabilities(efforts=("low",), verbosities=("high",), summaries=True, truncation=True)
    respond = asked(able, reasoning={"effort": "low", "summary": "concise"}, text={"verbosity": "high"}, truncation="auto")
    hints = (respond.reasoning_effort, respond.reasoning_summary, respond.verbosity, respond.truncate)
    assert hints == ("low", "concise", "high", True)


@pytest.mark.parametrize(
    ("fields", "param", "values"),
    [
        ({"reasoning": {"effort": "medium"}}, "reasoning.effort", "'low' and 'high'"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "'medium' and 'high'"),
    ],
)
def test_an_engine_that_has_other_values_of_a_hint_says_which(fields, param, values):
    error = refusal(SOME, **fields)
    assert (error.status, error.code, error.param) == (400, "unsupported_value", param)
    assert "with the 'm' model" in error.message and f"Supported values are: {values}." in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"generate_summary": "short"}}, "reasoning.generate_summary"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"verbosity": "huge"}}, "text.verbosity"),
        ({"truncation": "middle"}, "truncation"),
        ({"context_management": [{"type": "compaction"}, {"type": "forget"}]}, "context_management[1].type"),
        ({"image": {"context_compression": "most"}}, "image.context_compression"),
        ({"service_tier": "gold"}, "service_tier"),
    ],
)
def test_a_hint_that_the_api_does_not_know_is_refused(fields, param):
    error = refusal(**fields)
    assert (error.status, error.code, error.param) == (400, "invalid_value", param)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": 0}, "unsupported_parameter", "temperature"),
        ({"top_p": 0.5}, "unsupported_parameter", "top_p"),
        ({"presence_penalty": 1}, "unsupported_parameter", "presence_penalty"),
        ({"frequency_penalty": 1}, "unsupported_parameter", "frequency_penalty"),
        ({"top_logprobs": 2}, "unsupported_parameter", "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "unsupported_parameter", "include"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {}}]}, "unsupported_parameter", "tools[0]"),
        ({"text": {"format": {"type": "json_object"}}}, "unsupported_value", "text.format.type"),
        ({"modalities": ["text", "audio"], "stream": True}, "unsupported_parameter", "modalities"),
    ],
)
def test_what_changes_the_meaning_of_the_response_is_refused(fields, code, param):
    error = refusal(**fields)
    assert (error.status, error.code, error.param) == (400, code, param) and "with the 'm' model" in error.message


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"moderation": {"model": "m"}}, "unsupported_parameter", "moderation"),
        ({"access_programs": {"cyber": "daybreak_red"}}, "unsupported_value", "access_programs.cyber"),
    ],
)
def test_what_no_model_here_can_do_is_not_blamed_on_the_model(fields, code, param):
    error = refusal(**fields)
    assert (error.status, error.code, error.param) == (400, code, param)
    assert "this server does not support '" in error.message and "'m'" not in error.message


def test_the_reference_says_of_every_parameter_what_it_is():
    section = REFERENCE.read_text().partition("## Hints, and what changes the meaning\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    names = [name.partition(".")[0].partition(":")[0] for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert set(names) == set(CreateRequest.__struct_fields__) - {"extra"}
