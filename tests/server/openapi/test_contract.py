"""
What the server does is what its OpenAPI document says: schemathesis asks it for thousands of things, sensible and not.

`ANTIPHON_CONTRACT_EXAMPLES` says how many random requests each route gets, for a longer look at all of it, and `ANTIPHON_CONTRACT_SEED`
which.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.runtime.access.keys import SCOPES, make_key
from antiphon.server.processes.run import background_server
from antiphon.stores.sql.store import SqlStore
from support.server.scripted_server import SCRIPT, configured

EXAMPLES = os.environ.get("ANTIPHON_CONTRACT_EXAMPLES")
SEED = os.environ.get("ANTIPHON_CONTRACT_SEED", "8642")
pytestmark = pytest.mark.first

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}}


def check_with_schemathesis(base_url, folder, *options, examples=3):
    """Fail with its whole report, if it found something."""
    command = [
        *[Path(sys.executable).with_name("schemathesis"), "run", f"{base_url}/openapi.json", *options],
        # Of audio this server, without ears and a voice, says 501; `/chat/completions` is the route of the same name below `/v1`.
        # The stream of updates has no end.
        *["--exclude-path-regex", "^/v1/audio/|^/chat/|^/updates$"],
        *["--exclude-checks", "positive_data_acceptance", "--continue-on-failure", "--no-shrink", "--no-color"],
        *["--request-timeout", "120"],  # seconds; the default, 10, was too short on a busy machine
        *["--max-examples", EXAMPLES or str(examples), "--seed", SEED],
    ]
    environ = {**os.environ, "SCHEMATHESIS_HOOKS": "support.server.contract_checks", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)


def each(option, values):
    return [word for value in values for word in (option, value)]


def key_of(url):
    """A key that may do everything, in the store at `url`."""
    record, secret = make_key("schemathesis", scopes=tuple(SCOPES), now=1)

    async def add():
        store = SqlStore(url)
        await store.open()
        await store.keys.add(record)
        await store.close()

    asyncio.run(add())
    return secret


@pytest.fixture
def quiet_url(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error"})) as url:
        yield url


# What a response is made of has more fields than all else together, and its items are half of them. The last two have fields of which each
# is one of another operation too: `createMessage` and `createBetaSession`.
MANY_FIELDS = [
    "createChatCompletion",
    "createResponse",
    "countInputTokens",
    "compactResponse",
    "createConversation",
    "createConversationItems",
    "countMessageTokens",
    "createBetaTranscriptionSession",
]


@pytest.mark.long
def test_every_field_is_taken_and_refused_as_described(quiet_url, tmp_path):
    check_with_schemathesis(quiet_url, tmp_path, "--phases", "coverage", *each("--exclude-operation-id", MANY_FIELDS))


@pytest.mark.long
@pytest.mark.parametrize("operation", MANY_FIELDS)
def test_every_field_of_an_operation_with_many_is_taken_and_refused_as_described(quiet_url, tmp_path, operation):
    check_with_schemathesis(quiet_url, tmp_path, "--phases", "coverage", "--include-operation-id", operation)


def test_random_requests_and_what_follows_from_them_are_answered_as_described(quiet_url, tmp_path, pytestconfig):
    examples = 100 if pytestconfig.getoption("long") else 1
    check_with_schemathesis(quiet_url, tmp_path, "--phases", "examples,fuzzing,stateful", examples=examples)


@pytest.mark.long
def test_where_keys_are_needed_every_route_that_says_so_needs_one(tmp_path):
    config = configured(tmp_path, MODELS, **{"logging.level": "error"})
    key = key_of(str(config.database_url))
    with_key = ["--header", f"Authorization: Bearer {key}"]
    with background_server(config, is_persistent=True) as url:
        check_with_schemathesis(url, tmp_path, "--phases", "examples,fuzzing", *with_key, examples=1)
