"""Other models that answer when the requested one can't."""

import asyncio
import contextvars
import gc
import weakref

import msgspec
import pytest
import structlog
import uvloop
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationSettings, FunctionTool, JsonSchema, Sampling
from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import Script
from antiphon.errors import model_not_found
from antiphon.runtime.balancing.suitability import adapt, fits, missing_ability
from support.contracts.engines import Listener
from support.engines.upstreams import HALF, Server, ask, closing, whole
from support.runtime.upstream_pools import Observer, before_all


def refusing(status, **error):
    return whole(f"{status} No", {"error": {"message": "Oh.", **error}})


def run(scenario):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario())


def scripted(*lines, pace_ms=0, **capabilities):
    """An engine that says these lines."""
    answers = [{"when": "", "lines": lines or [{"text": "scripted"}]}]
    return ScriptedEngine(msgspec.convert({"answers": answers, "pace_ms": pace_ms}, Script), Capabilities(**capabilities))


class Model:
    """A model that answers in the place of another one."""

    def __init__(self, engine):
        self.engine = engine


class Models:
    """The models of these engines, by name; each can be removed."""

    def __init__(self, **engines):
        self.models = {name: Model(engine) for name, engine in engines.items()}

    def find(self, name):
        if name not in self.models:
            raise model_not_found(name, self.models)
        return self.models[name]


async def heard_of(play, request=None, small=None, *, observer=None, **options):
    """What is heard of a request to a model whose two servers play so, and which has the fallback `small`."""
    small = small or scripted()
    options = {"fallback": ["small"], **options}
    async with before_all(Server(play), Server(play), find=Models(small=small).find, observer=observer, **options) as engine:
        listener = Listener()
        async with engine.open(ConversationSettings(model="m"), listener) as conversation:
            conversation.send(request or ask())
            await listener.end_of("resp_1")
        return listener.words


def text_of(words):
    return "".join(word.text for word in words if isinstance(word, events.TextDelta))


def report_of(words):
    (report,) = (word for word in words if isinstance(word, events.AttemptsReported))
    return report


@pytest.mark.parametrize(
    ("play", "reason"),
    [
        (refusing(503), "overload"),
        (refusing(429), "overload"),
        (refusing(401), "overload"),
        (refusing(400, message="maximum context length is 9 tokens"), "context"),
        (refusing(400, code="unsupported_value"), "feature"),
    ],
)
def test_another_model_answers_for_the_reasons_that_are_configured(play, reason):
    async def scenario():
        observer = Observer()
        words = await heard_of(play, observer=observer)
        assert text_of(words).strip() == "scripted"
        report = report_of(words)
        assert report.fallback_reason == reason
        assert report.attempts[-1].model == "small"
        assert {attempt.model for attempt in report.attempts[:-1]} == {"m"}
        assert observer.fallbacks == [("m", "small", reason)]
        others = [other for other in ("overload", "context", "feature") if other != reason]
        words = await heard_of(play, fallback_on=others)
        assert isinstance(words[-1], events.ResponseFailed)

    run(scenario)


@pytest.mark.parametrize("play", [refusing(400, code="invalid_value"), refusing(413)])
def test_a_mistake_of_the_client_asks_no_other_model(play):
    async def scenario():
        assert isinstance((await heard_of(play))[-1], events.ResponseFailed)

    run(scenario)


def test_after_the_first_word_no_other_model_is_asked():
    async def scenario():
        words = await heard_of(closing(HALF))
        assert text_of(words) == "half"
        assert isinstance(words[-1], events.ResponseFailed)

    run(scenario)


def test_a_model_that_lacks_what_the_request_needs_is_passed_over():
    async def scenario():
        request = ask(tools=(FunctionTool("get_weather"),))
        assert isinstance((await heard_of(refusing(503), request))[-1], events.ResponseFailed)
        assert text_of(await heard_of(refusing(503), request, scripted(tools=True))).strip() == "scripted"

    run(scenario)


def test_the_client_hears_what_the_model_it_asked_for_said():
    async def scenario():
        small = scripted({"failure": {"status": 500, "message": "small broke"}})
        words = await heard_of(refusing(429), None, small)
        assert words[-1].status == 429
        report = report_of(words)
        assert [attempt.model for attempt in report.attempts] == ["m", "m", "small"]
        assert report.fallback_reason == "", "no other model answers"

    run(scenario)


def test_a_client_that_leaves_while_another_model_answers_is_told_nothing_more():
    async def scenario():
        small = scripted({"text": "la ", "repeat": 1000}, pace_ms=5)
        async with before_all(Server(refusing(503)), find=Models(small=small).find, fallback=["small"]) as engine:
            listener = Listener()
            async with engine.open(ConversationSettings(model="m"), listener) as conversation:
                conversation.send(ask())
                await listener.until(text_of)
                conversation.send(commands.Cancel("resp_1"))
                await listener.end_of("resp_1")
            assert listener.words[-1] == events.ResponseEnded("resp_1", "cancelled")

    run(scenario)


def test_a_fallback_that_was_removed_meanwhile_is_passed_over():
    async def scenario():
        models = Models(small=scripted(), last=scripted({"text": "last"}))
        async with before_all(Server(refusing(503)), find=models.find, fallback=["small", "last"]) as engine:
            del models.models["small"]
            listener = Listener()
            async with engine.open(ConversationSettings(model="m"), listener) as conversation:
                conversation.send(ask())
                await listener.end_of("resp_1")
        assert text_of(listener.words) == "last"

    run(scenario)


def test_chats_are_translated_where_a_fallback_could_not_relay_them():
    async def scenario():
        small, large = scripted(), scripted(relays=("chat/completions",))
        for fallback, relays in ({"small": small}, False), ({"large": large}, True), ({"large": large, "small": small}, False), ({}, True):
            names = [*fallback, "gone"]
            async with before_all(Server(HALF), find=Models(**fallback).find, fallback=names) as engine:
                assert ("chat/completions" in engine.capabilities.relays) is relays
                assert "completions" in engine.capabilities.relays, "which nothing can translate"

    run(scenario)


def test_a_fallback_is_held_until_its_answer_has_ended():
    async def scenario():
        models = Models(small=scripted({"text": "la ", "repeat": 1000}, pace_ms=5))
        holder = weakref.ref(models.models["small"])
        async with before_all(Server(refusing(503)), find=models.find, fallback=["small"]) as engine:
            listener = Listener()
            async with engine.open(ConversationSettings(model="m"), listener) as conversation:
                conversation.send(ask())
                await listener.until(text_of)
                models.models.clear()
                gc.collect()
                assert holder() is not None
                conversation.send(commands.Cancel("resp_1"))
                await listener.end_of("resp_1")
        gc.collect()
        assert holder() is None

    run(scenario)


def test_a_chain_of_fallbacks_reports_every_try():
    async def scenario():
        async with before_all(Server(refusing(503)), find=Models(last=scripted()).find, fallback=["last"], name="middle") as middle:
            words = await heard_of(refusing(500), None, middle)
        report = report_of(words)
        assert report.attempts[-1].model == "last"
        assert [attempt.model for attempt in report.attempts][-2:] == ["middle", "last"]

    run(scenario)


@pytest.fixture
def every_level_is_logged():
    """Servers of other tests in this process may have left a higher one."""
    configuration = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**configuration)


@pytest.mark.usefixtures("every_level_is_logged")
def test_the_log_has_one_line_however_many_engines_were_asked():
    async def scenario():
        with capture_logs() as lines:
            await heard_of(refusing(503))
        (line,) = (line for line in lines if line["event"] == "answered_by")
        assert [attempt.split("=")[0] for attempt in line["attempts"].split("; ")] in [
            ["m/upstream-1", "m/upstream-2", "small"],
            ["m/upstream-2", "m/upstream-1", "small"],
        ]

    run(scenario)


class Detached:
    """An engine that delivers in the context of nobody's request, as one that runs in another thread or process does."""

    def __init__(self, engine):
        self._engine = engine
        self.capabilities = engine.capabilities

    def open(self, settings, deliver):
        return self._engine.open(settings, lambda words: contextvars.Context().run(deliver, words))


@pytest.mark.usefixtures("every_level_is_logged")
def test_the_log_says_whose_request_it_was_whoever_answered():
    async def scenario():
        with bound_contextvars(request_id="req_1"), capture_logs([merge_contextvars]) as lines:
            await heard_of(refusing(503), small=Detached(scripted()))
        (line,) = (line for line in lines if line["event"] == "answered_by")
        assert line["request_id"] == "req_1"

    run(scenario)


def user(*parts):
    return (history.Message("user", parts),)


@pytest.mark.parametrize(
    ("request_", "lacks"),
    [
        (ask(), None),
        (ask(tools=(FunctionTool("f"),)), "tools"),
        (ask(format=JsonSchema("s", {})), "json_schema"),
        (ask(sampling=Sampling(top_logprobs=5)), "logprobs"),
        (commands.Respond(id="r", history=user(history.ImagePart(url="data:,"))), "images"),
        (commands.Respond(id="r", history=user(history.FilePart(inline="data:,"))), "files"),
        (commands.Respond(id="r", history=user(history.AudioPart("", "wav"))), "audio_in"),
        (commands.Respond(id="r", history=(history.ReasoningItem(encrypted_content="x"),)), "encrypted_reasoning"),
        (commands.Respond(id="r", history=(history.HostedToolItem({"type": "web_search_call"}),)), "hosted_items"),
    ],
)
def test_what_a_model_lacks_has_a_name(request_, lacks):
    assert missing_ability(request_, Capabilities()) == lacks


def test_a_request_loses_only_what_tunes_it():
    request = ask(reasoning_effort="high", verbosity="low", truncate=True, sampling=Sampling(temperature=0.5, presence_penalty=1.0))
    changed = adapt(request, Capabilities(efforts=("low",)))
    assert (changed.reasoning_effort, changed.verbosity, changed.truncate) == (None, None, False)
    assert (changed.sampling.temperature, changed.sampling.presence_penalty) == (0.5, None)
    assert adapt(request, Capabilities(efforts=("high",), verbosities=("low",), truncation=True, penalties=True)) == request


def test_input_and_output_must_fit_the_window():
    assert fits(90, ask(sampling=Sampling(max_tokens=10)), Capabilities(context_window=100))
    assert not fits(91, ask(sampling=Sampling(max_tokens=10)), Capabilities(context_window=100))
    assert fits(10**9, ask(), Capabilities())
