"""A real server on a real socket, with scripted models."""

from pathlib import Path

import openai
import pytest

from antiphon.config import load
from antiphon.server.run import background

SCRIPT = {
    "answers": [
        {"to": "result", "say": "The tool says {input}"},
        {
            "when": "weather",
            "lines": [
                {"call": "get_weather", "arguments": {"city": "Paris"}, "call_id": "call_w1"},
            ],
        },
        {
            "when": "two tools",
            "lines": [
                {"call": "get_weather", "arguments": {"city": "Paris"}, "call_id": "call_a"},
                {"call": "get_time", "arguments": {"zone": "CET"}, "call_id": "call_b"},
            ],
        },
        {"when": "patch", "lines": [{"call": "apply", "input": "*** free text ***", "call_id": "call_c"}]},
        {"when": "think", "lines": [{"reasoning": "Let me see."}, {"summary": "It was seen."}, {"text": "Done."}]},
        {"when": "json", "lines": [{"text": '{"name":"Ada","age":36}'}]},
        {"when": "refuse", "lines": [{"refusal": "I will not."}]},
        {"when": "too long", "lines": [{"text": "Once upon a"}, {"ended": "length"}]},
        {"when": "break at once", "lines": [{"broke": {"status": 503, "message": "The model is loading.", "retry_after_s": 3}}]},
        {"when": "break midway", "lines": [{"text": "So far"}, {"wait_ms": 1}, {"broke": {"message": "The model broke."}}]},
        {"when": "sing", "lines": [{"text": "la ", "repeat": 100000}]},
        {"when": "", "say": "You said: {input}"},
    ]
}


def configured(tmp_path: Path, models, **settings):
    """A configuration of these models, all else at its default, writing only below `tmp_path`."""
    environ = {"HOME": str(tmp_path)}
    entries = [{"name": name, **options} for name, options in models.items()]
    return load({"models": entries, **settings}, None, environ, tmp_path, etc=tmp_path / "none.toml").config


@pytest.fixture(scope="session")
def base_url(tmp_path_factory):
    """The address of a server with the models `parrot`, `slow` (a word in 5 ms) and `plain` (no abilities)."""
    nothing = dict.fromkeys(["images", "files", "audio_in", "tools", "custom_tools", "json_object", "json_schema", "truncation"], False)
    nothing |= {"counts_tokens": False, "penalties": False, "max_top_logprobs": None, "efforts": [], "summaries": False, "verbosities": []}
    models = {
        "parrot": {"engine": "scripted", **SCRIPT},
        "slow": {"engine": "scripted", "pace_ms": 5, **SCRIPT},
        "plain": {"engine": "scripted", "abilities": nothing},
    }
    with background(configured(tmp_path_factory.mktemp("home"), models)) as url:
        yield url


@pytest.fixture(scope="session")
def client(base_url):
    """The official client, which retries nothing."""
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as made:
        yield made
