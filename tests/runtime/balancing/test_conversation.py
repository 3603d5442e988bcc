"""Relayed requests, and the events that are held back, with engines that the test controls."""

import asyncio
import contextlib
import json

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError
from antiphon.runtime.balancing.affinity import affinity_key
from antiphon.runtime.balancing.balanced_engine import BalancedEngine, common_capabilities
from antiphon.runtime.balancing.conversation import is_output
from antiphon.runtime.balancing.options import BalanceOptions, UpstreamLimits
from antiphon.runtime.balancing.upstreams import ModelUpstream, UpstreamPool
from support.contracts.engines import Listener
from support.engines.upstreams import ask
from support.runtime.upstream_pools import Clock, Observer

PATH = "chat/completions"


class Reciting:
    """An engine that answers every request with the same events, or raises."""

    def __init__(self, *batches, raises=None, capabilities=None):
        self.capabilities = capabilities or Capabilities(relays=(PATH,))
        self.batches, self.raises = batches, raises
        self.commands = []

    async def start(self):
        pass

    async def stop(self):
        pass

    @contextlib.asynccontextmanager
    async def open(self, _settings, deliver):
        if isinstance(self.raises, ApiError):
            raise self.raises
        self.deliver = deliver
        yield self

    def send(self, command):
        self.commands.append(command)
        if self.raises is not None:
            raise self.raises
        for batch in self.batches:
            self.deliver(batch)

    def pause(self):
        pass

    def resume(self):
        pass


def data(value):
    return events.RelayData("r", value if isinstance(value, bytes) else json.dumps(value).encode())


def delta(**fields):
    return data({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def failed(**fields):
    return events.ResponseFailed(id="r", **{"message": "Oh.", "status": 502, "cause": "502", **fields})


ENDED = events.ResponseEnded("r")


def heard_of(*engines, request=None, **options):
    """What is heard of a request to a model with these engines, which are asked in this order."""

    async def scenario():
        balance = BalanceOptions(balance="least_outstanding", **options)
        clock, observer = Clock(), Observer()
        upstreams = [
            ModelUpstream("m", engine, UpstreamLimits(name=f"u{place}", weight=9 - place), balance, observer, clock)
            for place, engine in enumerate(engines)
        ]
        engine = BalancedEngine(
            "m", UpstreamPool(upstreams, balance, 8, 5, clock), balance, is_fixed_model=True, streams_whole=True, streams_relays=True
        )
        listener = Listener()
        async with asyncio.timeout(20), engine.open(ConversationSettings(model="m"), listener) as conversation:
            conversation.send(request or commands.Relay(id="r", path=PATH, body=b"{}", stream=True))
            await listener.end_of("r")
        await engine.stop()
        return listener.words

    return asyncio.run(scenario())


def test_a_relayed_request_goes_to_the_next_before_its_first_data():
    good = Reciting([data(b'{"a": 1}')], [data(b"[DONE]"), ENDED])
    words = heard_of(Reciting([failed()]), good)
    assert [word.data for word in words if isinstance(word, events.RelayData)] == [b'{"a": 1}', b"[DONE]"]
    assert words[-1] == ENDED
    assert [attempt.outcome for attempt in words[1].attempts] == ["502", "ok"]
    assert good.commands[0].body == b"{}"


def test_a_chunk_with_the_role_only_is_no_output_yet():
    role = delta(role="assistant", content="")
    words = heard_of(Reciting([role], [failed()]), Reciting([role], [delta(content="Hi")], [ENDED]))
    assert [word for word in words if isinstance(word, events.RelayData)] == [role, delta(content="Hi")]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (delta(content="Hi"), True),
        (delta(role="assistant"), False),
        (delta(role="assistant", content=None, refusal=None), False),
        (delta(tool_calls=[{"index": 0}]), True),
        (delta(reasoning_content="Hm"), True),
        (data({"choices": []}), False),
        (data({"choices": [{"delta": {}, "finish_reason": "stop"}]}), True),
        (data({"choices": [{"text": "Hi"}]}), True),
        (data({"data": [[0.1]]}), True),
        (data(b"[DONE]"), True),
        (data(b"x" * 5000), True),
        (events.TextDelta("r", ""), False),
        (events.TextDelta("r", "Hi"), True),
        (events.ItemBoundary("r"), False),
    ],
)
def test_what_counts_as_output(event, expected):
    assert is_output(event) is expected


@given(st.binary(max_size=60))
def test_any_relayed_bytes_are_output_or_not(content):
    assert is_output(data(content)) in (True, False)


def test_what_came_before_a_failure_is_not_heard():
    silent = [events.ItemBoundary("r"), events.TextDelta("r", ""), events.Usage(id="r", input_tokens=5, output_tokens=0)]
    words = heard_of(Reciting(silent, [failed()]), Reciting([events.TextDelta("r", "Hi")], [ENDED]), request=ask("r"))
    assert [type(word) for word in words] == [events.RetryScheduled, events.AttemptsReported, events.TextDelta, events.ResponseEnded]


def test_events_of_others_are_not_heard_before_the_output():
    queue = [events.QueueUpdate(id="ticket", position=1, queue_length=1, wait_s=1), events.WorkerAssigned("ticket")]
    words = heard_of(Reciting(queue, [events.TextDelta("r", "Hi"), ENDED]), request=ask("r"))
    assert [type(word) for word in words] == [events.AttemptsReported, events.TextDelta, events.ResponseEnded]


def test_an_engine_without_room_or_that_can_t_be_opened_is_passed_over():
    good = Reciting([events.TextDelta("r", "Hi"), ENDED])
    for reason in (EngineOverrun("full"), ApiError("Oh.", status=503)):
        words = heard_of(Reciting(raises=reason), good, request=ask("r"))
        assert words[-1] == ENDED


def test_an_answer_without_a_word_is_an_answer():
    words = heard_of(Reciting([ENDED]), Reciting([failed()]), request=ask("r"))
    assert words[-1] == ENDED
    assert len(words[0].attempts) == 1


def test_after_the_end_nothing_is_heard():
    words = heard_of(Reciting([events.TextDelta("r", "Hi"), ENDED], [events.TextDelta("r", "more"), ENDED]), request=ask("r"))
    assert words[-1] == ENDED
    assert len(words) == 3


def test_what_all_can_do_is_what_the_model_can_do():
    one = Capabilities(images=True, tools=True, context_window=9000, efforts=("low", "high"), max_top_logprobs=20, sessions=4)
    two = Capabilities(images=True, context_window=4000, efforts=("high",), max_top_logprobs=5)
    assert common_capabilities([one, two]) == Capabilities(
        images=True, context_window=4000, efforts=("high",), max_top_logprobs=5, sessions=4
    )
    assert common_capabilities([one]) == one
    assert common_capabilities([one, Capabilities()]).max_top_logprobs is None


def key(body, **settings):
    relay = commands.Relay(id="r", path=PATH, body=json.dumps(body).encode() if isinstance(body, dict) else body)
    return affinity_key(ConversationSettings(model="m", **settings), relay)


def turn(*texts):
    roles = ("system", "user", "assistant", "user", "assistant")
    return {"model": "m", "messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]}


def test_later_turns_of_a_conversation_have_the_key_of_the_first():
    first = key(turn("Be brief.", "Hi"))
    assert key(turn("Be brief.", "Hi", "Hello", "And now?")) == first
    assert key(turn("Be brief.", "Ho")) != first
    assert key(turn("Be long.", "Hi")) != first
    assert key(turn("Be brief.", "Hi"), tenant="other") != first
    assert key(turn("Be brief.", "Hi"), cache_key="k") == key(turn("Be long.", "Ho"), cache_key="k")


def test_a_billing_line_of_an_agent_changes_no_key():
    def request(line):
        return ask("r", instructions=f"x-anthropic-billing-header: cch={line}\nYou are an agent.")

    settings = ConversationSettings(model="m")
    assert affinity_key(settings, request("1")) == affinity_key(settings, request("2"))


@given(st.binary(max_size=200))
def test_a_body_that_is_no_json_has_a_key_too(body):
    assert key(body) == key(body)
