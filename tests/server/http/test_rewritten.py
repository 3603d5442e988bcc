"""Answers that are rewritten in the protocols that can't take a text back."""

import pytest

from antiphon.server.processes.run import background_server
from support.engines.upstreams import streamed, whole
from support.server.chat_protocols import ask, question, send
from support.server.raw_upstream import playing
from support.server.scripted_server import SCRIPT, configured

NEW = ("chat", "messages")
COLOURS = [{"pattern": "colour", "replacement": "color"}]
DRAFT = "A colour."
SAID = {"index": 0, "message": {"role": "assistant", "content": DRAFT}, "finish_reason": "stop"}


@pytest.fixture(scope="module")
def upstreams():
    with playing(whole("200 OK", {"choices": [SAID]})) as plain, playing(streamed(DRAFT)) as streaming:
        yield {"whole": plain, "streamed": streaming}


@pytest.fixture(scope="module")
def url(tmp_path_factory, upstreams):
    models = {name: {"engine": "scripted", **SCRIPT} for name in ("parrot", "broken", "plain")}
    models |= {name: {"engine": "chat", "base_url": play[0], "quirks": "vllm", "retries": 0} for name, play in upstreams.items()}
    rewrites = [
        {"name": "spell", "models": ["parrot", "whole", "streamed"], "kind": "rule", "rules": COLOURS},
        {"name": "runaway", "models": ["broken"], "kind": "rule", "rules": [{"pattern": "(o+)+$"}], "timeout_s": 0.2},
    ]
    routing = [{"default": "parrot"}]
    with background_server(configured(tmp_path_factory.mktemp("home"), models, rewrites=rewrites, routing=routing)) as address:
        yield address


@pytest.mark.parametrize("model", ["parrot", "auto"])
@pytest.mark.parametrize("protocol", NEW)
def test_an_answer_is_sent_when_it_is_final(url, protocol, model):
    answer = ask(url, protocol, model, "the colour")
    assert (answer.text, answer.headers["antiphon-rewrite"]) == ("You said: the color", "completed")
    assert ask(url, protocol, model, "the colour", stream=True).text == "You said: the color"


@pytest.mark.parametrize("protocol", NEW)
def test_one_that_fails_or_is_not_rewritten_says_so(url, protocol):
    failed = ask(url, protocol, "broken", "o" * 40 + "!")
    assert (failed.text, failed.headers["antiphon-rewrite"]) == ("You said: " + "o" * 40 + "!", "failed")
    plain = ask(url, protocol, "plain", "the colour")
    assert (plain.text, plain.headers["antiphon-rewrite"]) == ("You said: the colour", None)


@pytest.mark.parametrize("model", ["whole", "streamed"])
def test_a_chat_whose_answer_is_rewritten_is_not_passed_on(url, upstreams, model):
    reply = send(url, "chat", question("chat", model, stream=model == "streamed"))
    assert (reply.status, reply.text) == (200, "A color.")


def test_every_choice_is_rewritten(url):
    choices = ask(url, "chat", "parrot", "the colour", n=2)
    assert choices.body.count(b"the color") == 2 and b"colour" not in choices.body
