"""An engine whose answers are rewritten: what a session gets of any answer, in whatever pieces it comes."""

import asyncio
import contextlib
import contextvars
import itertools

import pytest
import structlog
from hypothesis import assume, given, strategies as st
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from antiphon.config.rewrites import RewriteEntry
from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import ConversationSettings, JsonObject, Voice
from antiphon.protocols.output import OutputMachine, TextAppended
from antiphon.protocols.output_table import OutputKind
from antiphon.runtime.rewriting.engine import RewritingEngine, split_text
from antiphon.runtime.rewriting.rewrites import Rewrite
from antiphon.runtime.rewriting.rule_pool import RulePool
from support.left_behind import no_collector
from support.protocols.words import ID, any_sound, any_word, ending
from support.runtime.rewrites import Louder, Playing, settle

SETTINGS = ConversationSettings(model="m", tenant="t")
QUESTION = (history.Message("user", (history.TextPart("Hi"),)),)
RESPOND = commands.Respond(id=ID, history=QUESTION)
USAGE = events.Usage(id=ID, input_tokens=1, output_tokens=2)


@contextlib.asynccontextmanager
async def conversing(*rewrites, replaces=True, **fields):
    engine, heard, counts = Playing(), [], []
    rewriting = RewritingEngine(engine, rewrites, replaces=replaces, count=lambda *row: counts.append(row), **fields)
    async with rewriting.open(SETTINGS, heard.extend) as conversation:
        yield engine, conversation, heard, counts


def answered(words, rewrite, pieces=(), replaces=True, request=RESPOND):
    """What a session gets of an answer that comes in these pieces."""

    async def scenario():
        async with conversing(rewrite, replaces=replaces) as (engine, conversation, heard, _):
            conversation.send(request)
            places = sorted({0, len(words), *(place for place in pieces if place < len(words))})
            for start, end in itertools.pairwise(places):
                engine.deliver(words[start:end])
            await settle()
            return list(heard)

    return asyncio.run(scenario())


def machine_of(words):
    """The output of an answer, and what was streamed of each part."""
    numbers = itertools.count(1)
    machine, streamed = OutputMachine(lambda prefix: f"{prefix}_{next(numbers)}"), {}
    for word in words:
        for step in machine.apply(word):
            if isinstance(step, TextAppended):
                key = (step.item.index, step.part.kind, step.part.index)
                streamed[key] = streamed.get(key, "") + step.text
    return machine, streamed


def content(machine):
    """All of the output: kinds, statuses, texts, calls, annotations."""
    return [
        (
            item.id,
            item.kind,
            item.status,
            item.arguments,
            [(part.kind, part.text, part.annotations) for part in (*item.parts, *item.summaries)],
        )
        for item in machine.items
    ]


scripts = st.tuples(st.lists(st.one_of(any_word, any_word, any_sound), max_size=12), ending).map(lambda pair: [*pair[0], pair[1]])
cuts = st.lists(st.integers(1, 12), max_size=4)


@given(scripts, cuts, st.sampled_from(["shouts", "fails", "whispers", "nothing"]), st.sampled_from(["send", "hold"]))
def test_whatever_an_engine_says_only_the_text_at_the_end_changes(words, pieces, does, drafts):
    plain, _ = machine_of(words)
    # An engine that goes on with a call that it has not started breaks its contract, and the response: here it may be told later.
    assume(plain.outcome != "failed" or isinstance(words[-1], events.ResponseFailed))
    heard = answered(words, Louder(does, drafts=drafts), pieces)
    machine, streamed = machine_of(heard)
    assert sum(isinstance(word, events.ResponseEnded | events.ResponseFailed) for word in heard) == 1
    assert (machine.outcome, len(machine.items)) == (plain.outcome, len(plain.items))
    starts = [word for word in heard if isinstance(word, events.RewriteStarted)]
    if not starts or does != "shouts" or plain.outcome == "failed":
        assert content(machine) == content(plain)
    else:
        (last,) = plain.items[-1].parts
        assert last.kind is OutputKind.TEXT and machine.items[-1].parts[0].text == last.text.upper() + "!"
        machine.items[-1].parts[0].chunks = list(last.chunks)
        assert content(machine) == content(plain)
    assert machine.rewrite_status == ({"fails": "failed"}.get(does, "completed") if starts and plain.outcome != "failed" else None)
    if drafts == "hold":
        texts = {
            (item.index, part.kind, part.index): part for item in machine_of(heard)[0].items for part in (*item.parts, *item.summaries)
        }
        assert {key: text for key, text in streamed.items() if text} == {key: part.text for key, part in texts.items() if part.text}


@given(scripts, st.sampled_from(["shouts", "fails"]))
def test_a_draft_is_sent_before_it_is_rewritten_and_its_text_is_replaced_after(words, does):
    heard = answered(words, Louder(does))
    kinds = [type(word) for word in heard]
    if events.RewriteStarted in kinds:
        start, end = kinds.index(events.RewriteStarted), kinds.index(events.RewriteEnded)
        assert start < end and set(kinds[end + 1 : -1]) <= {events.ItemBoundary, events.Usage}
        assert not {events.TextDelta, events.AnnotationAdded} & set(kinds[start:])
        assert (heard[end].text is None) == (does == "fails")


@given(scripts)
def test_the_tokens_of_both_passes_are_counted_where_both_are_known(words):
    heard = answered(words, Louder("fails"))
    plain, machine = machine_of(words)[0], machine_of(heard)[0]
    if machine.rewrite_status is None or plain.usage is None:
        assert machine.usage == plain.usage
    else:
        assert (machine.usage.input_tokens, machine.usage.output_tokens) == (11, 22)


@pytest.mark.parametrize("drafts", ["send", "hold"])
def test_a_server_that_says_where_items_end_is_rewritten_too(drafts):
    words = [events.ItemBoundary(ID, "msg_1"), events.TextDelta(ID, "hi"), events.ItemBoundary(ID), USAGE, events.ResponseEnded(ID)]
    heard = answered(words, Louder(drafts=drafts))
    assert [part.text for item in machine_of(heard)[0].items for part in item.parts] == ["HI!"]
    more = [*words[:3], events.TextDelta(ID, "more"), *words[2:]]
    heard = answered(more, Louder(drafts=drafts))
    assert [part.text for item in machine_of(heard)[0].items for part in item.parts] == ["hi", "MORE!"]


@pytest.mark.parametrize(
    "request_", [commands.Respond(id=ID, history=QUESTION, voice=Voice()), commands.Respond(id=ID, history=QUESTION, format=JsonObject())]
)
def test_speech_and_structured_output_stay_as_they_are(request_):
    words = [events.TextDelta(ID, "{}"), events.ResponseEnded(ID)]
    assert answered(words, Louder(drafts="hold"), request=request_) == words


def test_a_protocol_that_can_not_take_text_back_holds_drafts():
    words = [events.TextDelta(ID, "hi "), events.TextDelta(ID, "you"), events.ResponseEnded(ID)]
    heard = answered(words, Louder(drafts="send"), pieces=(1, 2), replaces=False)
    assert "".join(word.text for word in heard if isinstance(word, events.TextDelta)) == "HI YOU!"


def test_log_probabilities_of_a_text_that_was_replaced_are_gone():
    logprob = events.TokenLogprob(events.TokenCandidate("hi", -0.1))
    words = [events.TextDelta(ID, "hi", (logprob,)), events.ResponseEnded(ID)]
    for does, expected in (("shouts", []), ("whispers", [logprob]), ("fails", [logprob])):
        for drafts in ("send", "hold"):
            assert machine_of(answered(words, Louder(does, drafts=drafts)))[0].items[0].parts[0].logprobs == expected


def test_a_text_beyond_the_limit_is_sent_as_it_is_and_held_no_longer():
    words = [events.TextDelta(ID, "12345"), events.TextDelta(ID, "67890"), events.TextDelta(ID, "1"), events.ResponseEnded(ID)]
    heard = answered(words, Louder(drafts="hold", max_chars=9), pieces=(1, 2, 3))
    assert heard == words


def test_the_log_says_whose_answer_was_not_rewritten_whatever_delivers_it():
    async def scenario():
        with bound_contextvars(request_id="req_1"), capture_logs([merge_contextvars]) as lines:
            async with conversing(Louder("fails")) as (engine, conversation, *_):
                conversation.send(RESPOND)
                contextvars.Context().run(engine.deliver, [events.TextDelta(ID, "hi"), events.ResponseEnded(ID)])
                await settle()
        (line,) = lines
        assert (line["event"], line["request_id"]) == ("rewrite_failed", "req_1")

    configuration = structlog.get_config()
    structlog.reset_defaults()  # servers of other tests in this process may have left a higher level
    try:
        asyncio.run(scenario())
    finally:
        structlog.configure(**configuration)


def test_a_rewrite_that_takes_too_long_gives_the_draft():
    async def scenario():
        rewrite = Louder("hangs", timeout_s=0.01)
        async with conversing(rewrite) as (engine, conversation, heard, counts):
            conversation.send(RESPOND)
            engine.deliver([events.TextDelta(ID, "hi"), events.ResponseEnded(ID)])
            while not isinstance(heard[-1], events.ResponseEnded):  # noqa: ASYNC110 - what ends it is a timer
                await asyncio.sleep(0.001)
            assert heard[-2] == events.RewriteEnded(id=ID, status="failed")
            assert counts == [("louder", "failed")]

    asyncio.run(scenario())


@pytest.mark.parametrize("drafts", ["send", "hold"])
def test_a_response_that_is_cancelled_while_it_is_rewritten_ends_at_once_with_its_draft(drafts):
    async def scenario():
        async with conversing(Louder("hangs", drafts=drafts)) as (engine, conversation, heard, _):
            conversation.send(RESPOND)
            engine.deliver([events.TextDelta(ID, "hi"), events.ResponseEnded(ID)])
            await settle()
            conversation.send(commands.Cancel(ID))
            assert heard[-1] == events.ResponseEnded(ID, "cancelled")
            assert [word.text for word in heard if isinstance(word, events.TextDelta)] == ["hi"]
            await settle()
            assert sum(isinstance(word, events.ResponseEnded) for word in heard) == 1
            assert engine.commands == [RESPOND], "there is nothing left to cancel behind"

    asyncio.run(scenario())


def test_a_response_that_is_cancelled_before_its_end_is_cancelled_behind():
    async def scenario():
        async with conversing(Louder(drafts="hold")) as (engine, conversation, heard, _):
            conversation.send(RESPOND)
            engine.deliver([events.TextDelta(ID, "hi")])
            conversation.send(commands.Cancel(ID))
            assert engine.commands[-1] == commands.Cancel(ID)
            engine.deliver([events.ResponseEnded(ID, "cancelled")])
            assert heard == [events.TextDelta(ID, "hi"), events.ResponseEnded(ID, "cancelled")]

    asyncio.run(scenario())


def own_rewrite():
    return Rewrite(RewriteEntry(name="own", kind="spelling", timeout_s=20), RulePool(), lambda _name: pytest.fail("no other engine"))


def test_the_model_that_answered_rewrites_in_the_same_conversation():
    async def scenario():
        async with conversing(own_rewrite()) as (engine, conversation, heard, _):
            conversation.send(RESPOND)
            engine.deliver([events.TextDelta(ID, "helo"), events.Usage(id=ID, input_tokens=1, output_tokens=1), events.ResponseEnded(ID)])
            conversation.pause()
            await settle()
            assert engine.commands[1:3] == ["pause", "resume"], "what nobody reads yet needs no pause"
            request = engine.commands[3]
            assert request.out_of_band and request.whole and "<text1>\nhelo\n</text1>" in request.history[0].parts[0].text
            other = request.id
            engine.deliver([events.ReasoningDelta(other, "Hm"), events.TextDelta(other, "hello")])
            engine.deliver([events.Usage(id=other, input_tokens=5, output_tokens=6), events.ResponseEnded(other)])
            await settle()
            assert engine.commands[4] == "pause"
            assert heard[-3:] == [
                events.RewriteEnded(id=ID, status="completed", text="hello"),
                events.Usage(id=ID, input_tokens=6, output_tokens=7),
                events.ResponseEnded(ID),
            ]

    asyncio.run(scenario())


def test_a_cancelled_rewrite_is_cancelled_behind_and_what_still_comes_of_it_is_dropped():
    async def scenario():
        async with conversing(own_rewrite()) as (engine, conversation, heard, _):
            conversation.send(RESPOND)
            engine.deliver([events.TextDelta(ID, "helo"), events.ResponseEnded(ID)])
            await settle()
            conversation.send(commands.Cancel(ID))
            await settle()
            other = engine.commands[1].id
            assert engine.commands[2] == commands.Cancel(other)
            count = len(heard)
            engine.deliver([events.TextDelta(other, "hello"), events.ResponseEnded(other, "cancelled")])
            assert len(heard) == count

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "words",
    [
        [events.ResponseFailed(id="x", message="gone")],
        [events.RefusalDelta("x", "No.")],
        [events.ToolCallStarted("x", "c", "f")],
        [events.TextDelta("x", "hel"), events.ResponseEnded("x", "length")],
        [events.TextDelta("x", " "), events.ResponseEnded("x")],
        [events.TextDelta("x", "long " * 1000)],
    ],
)
def test_a_model_that_does_not_do_it_leaves_the_draft(words):
    async def scenario():
        async with conversing(own_rewrite()) as (engine, conversation, heard, _):
            conversation.send(RESPOND)
            engine.deliver([events.TextDelta(ID, "helo"), events.ResponseEnded(ID)])
            await settle()
            other = engine.commands[1].id
            engine.deliver(
                [type(word)(**{**{name: getattr(word, name) for name in word.__struct_fields__}, "id": other}) for word in words]
            )
            await settle()
            assert heard[-2:] == [events.RewriteEnded(id=ID, status="failed"), events.ResponseEnded(ID)]

    asyncio.run(scenario())


def test_two_responses_of_a_conversation_are_rewritten_apart():
    async def scenario():
        async with conversing(Louder(drafts="hold")) as (engine, conversation, heard, _):
            for id in ("resp_a", "resp_b"):
                conversation.send(commands.Respond(id=id, history=QUESTION))
            engine.deliver([events.TextDelta("resp_a", "a"), events.TextDelta("resp_b", "b"), events.ResponseEnded("resp_b")])
            await settle()
            engine.deliver([events.ResponseEnded("resp_a")])
            await settle()
            texts = [(word.id, word.text) for word in heard if isinstance(word, events.TextDelta)]
            assert texts == [("resp_b", "B!"), ("resp_a", "A!")]

    asyncio.run(scenario())


def test_a_conversation_that_is_left_while_it_rewrites_is_freed():
    async def scenario():
        async with conversing(Louder("hangs", drafts="hold")) as (engine, conversation, _, _):
            conversation.send(RESPOND)
            engine.deliver([events.TextDelta(ID, "hi"), events.ResponseEnded(ID)])
            await settle()

    asyncio.run(scenario())
    with no_collector() as left:
        asyncio.run(scenario())
        assert not left()


@given(st.text(max_size=1000))
def test_a_final_text_comes_in_pieces_that_add_up_to_it(text):
    pieces = split_text(text)
    assert "".join(pieces) == text and all(pieces) and max(map(len, pieces), default=0) <= 201
