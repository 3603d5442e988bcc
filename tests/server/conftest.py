"""A real server on a real socket, with scripted models."""

import openai
import pytest

from antiphon.server.processes.run import background_server
from support.server.scripted_server import SCRIPT, configured


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
    with background_server(configured(tmp_path_factory.mktemp("home"), models)) as url:
        yield url


@pytest.fixture(scope="session")
def client(base_url):
    """The official client, which retries nothing."""
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as made:
        yield made
