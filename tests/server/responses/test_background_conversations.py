"""Background responses in a conversation: whatever ends one gives the conversation back."""

import time

import openai
import pytest

from server.responses.test_background import client_of, ended, started
from support.server import own_process
from support.server.own_process import serving

PATIENCE_S = 20
MODELS = [
    *own_process.MODELS,
    {"name": "broken", "engine": "scripted", "answers": [{"lines": [{"text": "la "}, {"failure": {"message": "The model broke."}}]}]},
]


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """The official client of a server that makes one background response at a time, and lets one more wait."""
    limits = {"background.running": 1, "background.waiting": 1, "logging.level": "warning"}
    with serving(tmp_path_factory.mktemp("home"), MODELS, **limits) as (_, url), client_of(url) as client:
        yield client


def queued(client, conversation, model="endless", **fields):
    return client.responses.create(model=model, input="Sing.", conversation=conversation, background=True, **fields)


def texts(client, conversation):
    return ["".join(part.text for part in item.content) for item in client.conversations.items.list(conversation, order="asc")]


def assert_locked(client, conversation):
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="parrot", input="Hi", conversation=conversation)
    assert refusal.value.code == "conversation_locked"


def assert_free(client, conversation, *before):
    """A response gets the conversation, at the latest as soon as its server knows of the end of the one before."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            client.responses.create(model="parrot", input="Hi", conversation=conversation)
        except openai.BadRequestError as error:
            assert error.code == "conversation_locked" and time.monotonic() < deadline
            time.sleep(0.02)
        else:
            break
    assert texts(client, conversation) == [*before, "Hi", "Hi"]


@pytest.mark.parametrize("stream", [True, False])
def test_one_that_completes_adds_what_was_said_and_the_next_may_follow_at_once(official, stream):
    conversation = official.conversations.create().id
    if stream:
        with official.responses.create(model="parrot", input="One", conversation=conversation, background=True, stream=True) as events:
            assert [*events][-1].type == "response.completed"
    else:
        response = official.responses.create(model="parrot", input="One", conversation=conversation, background=True)
        assert response.conversation.id == conversation
        assert ended(official, response.id).status == "completed"
    official.responses.create(model="parrot", input="Two", conversation=conversation)
    assert texts(official, conversation) == ["One", "One", "Two", "Two"]


def test_one_that_is_cancelled_or_deleted_adds_nothing(official):
    for end in (official.responses.cancel, official.responses.delete):
        conversation = official.conversations.create().id
        response_id = started(official, conversation=conversation)
        assert_locked(official, conversation)
        end(response_id)
        assert_free(official, conversation)


def test_one_that_waits_has_its_conversation_until_it_is_cancelled(official):
    conversation = official.conversations.create().id
    first = started(official)
    waiting = queued(official, conversation)
    assert_locked(official, conversation)
    official.responses.cancel(waiting.id)
    assert_free(official, conversation)
    official.responses.cancel(first)


def test_one_that_is_refused_or_fails_leaves_no_lock(official):
    conversation = official.conversations.create().id
    running = [started(official), queued(official, official.conversations.create().id).id]
    with pytest.raises(openai.RateLimitError):
        queued(official, conversation)
    assert_free(official, conversation)
    for response_id in running:
        official.responses.cancel(response_id)
    response = official.responses.create(model="broken", input="Sing.", conversation=conversation, background=True)
    assert ended(official, response.id).status == "failed"
    assert_free(official, conversation, "Hi", "Hi")


def test_one_that_is_begun_again_takes_its_conversation_anew(tmp_path):
    limits = {"background.running": 1, "logging.level": "warning"}
    with serving(tmp_path, **limits) as (_, url), client_of(url) as client:
        conversation = client.conversations.create().id
        started(client)
        waiting = queued(client, conversation, model="parrot").id
    with serving(tmp_path, **limits) as (_, url), client_of(url) as client:
        assert ended(client, waiting).status == "completed"
        assert_free(client, conversation, "Sing.", "Sing.")
