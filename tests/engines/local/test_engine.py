"""The embedded engine: its options, and its answers with the small model."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, EngineOverrun
from antiphon.engine_api.options import ConversationSettings, CustomTool, FunctionTool, JsonSchema, Sampling, ToolChoice
from antiphon.engines.local.engine import MAX_WAITING_RESPONSES, build
from antiphon.errors import ServerError
from support.engines import shallow_model

SMALL = "smollm2-135m-instruct"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"
WEIGHTS = Path(os.environ.get("ANTIPHON_MODELS") or CACHE)
GREEDY = Sampling(temperature=0, max_tokens=24)
SECONDS = {"type": "integer", "minimum": 0, "maximum": 3600}
TOOL = FunctionTool(
    "set_timer",
    "Sets a timer",
    {"type": "object", "properties": {"seconds": SECONDS}, "required": ["seconds"], "additionalProperties": False},
)


def place(tmp_path):
    return BuildContext(weights_folder=tmp_path, base_folder=tmp_path)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"colour": "red"}, r"'colour'.*knows 'model', 'path'"),
        ({"slots": 0}, "slots"),
        ({"context": "many"}, "context"),
        ({"template": "alpaca"}, "template"),
        ({"model": SMALL, "path": "x.gguf"}, "both 'model' and 'path'"),
        ({"model": "gpt-9"}, "no model 'gpt-9'"),
        ({}, "no model 'house'"),
    ],
)
def test_a_wrong_option_is_named(options, why, tmp_path):
    with pytest.raises(ServerError, match=why):
        build("house", options, place(tmp_path))


def test_a_model_named_like_one_of_the_catalogue_needs_no_option(tmp_path):
    assert build(SMALL, {}, place(tmp_path)).capabilities.context_window == 4096


def test_it_claims_what_it_can_do_and_no_more(tmp_path):
    abilities = build(SMALL, {"context": 2048}, place(tmp_path)).capabilities
    assert abilities == Capabilities(
        tools=True,
        custom_tools=True,
        json_object=True,
        json_schema=True,
        truncation=True,
        penalties=True,
        max_top_logprobs=20,
        foresees=True,
        sessions=4,
        temperature_default=0.2,
        top_p_default=0.9,
        context_window=2048,
        counts_tokens=True,
    )


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ServerError, match=r"no model file .*nowhere\.gguf"):
        asyncio.run(build("house", {"path": "nowhere.gguf"}, place(tmp_path)).start())


def message(role, text):
    return engine_history.Message(role, (engine_history.TextPart(text),))


def ask(*history, id="r", **more):
    history = tuple(message("user", one) if isinstance(one, str) else one for one in history)
    return commands.Respond(id=id, history=history, **({"sampling": GREEDY} | more))


class Talker:
    """A started engine, and what it says."""

    def __init__(self, engine, runner):
        self.engine = engine
        self.runner = runner

    def hear(self, *words, tenant="", until=None):
        """All that is said to these words, until every answer has ended; `until` may say more in between."""
        return self.runner.run(self._hear(words, tenant, until or (lambda _said, _tell: None)))

    async def _hear(self, words, tenant, until):
        said, over = [], asyncio.Event()
        waiting = {word.id for word in words if isinstance(word, commands.Respond)}

        def deliver(arrived):
            assert not telling, "delivered from within tell"
            for word in arrived:
                said.append(word)
                if isinstance(word, events.ResponseEnded | events.ResponseFailed):
                    waiting.remove(word.id)
            asyncio.get_running_loop().call_soon(until, said, conversation.send)
            if not waiting:
                over.set()

        async with self.engine.open(ConversationSettings(model=SMALL, tenant=tenant), deliver) as conversation:
            telling = True
            for word in words:
                conversation.send(word)
            telling = False
            async with asyncio.timeout(120):
                await over.wait()
        return said


@contextlib.contextmanager
def talking(**options):
    with asyncio.Runner() as runner:
        engine = build("m", options, BuildContext(weights_folder=WEIGHTS, base_folder=Path()))
        runner.run(engine.start())
        yield Talker(engine, runner)
        runner.run(engine.stop())
        runner.run(engine.stop())


@pytest.fixture(scope="module")
def talker():
    """One that makes sense."""
    with talking(model=SMALL, context=512, threads=1) as talker:
        yield talker


@pytest.fixture(scope="module")
def shallow(tmp_path_factory):
    return str(shallow_model.write(WEIGHTS, tmp_path_factory.mktemp("shallow")))


@pytest.fixture(scope="module")
def babbler(shallow):
    """One that is fast, and makes no sense."""
    with talking(path=shallow, template="chatml", context=512, threads=1) as babbler:
        yield babbler


def text_of(words):
    return "".join(word.text for word in words if isinstance(word, events.TextDelta))


def used_of(words):
    (used,) = (word for word in words if isinstance(word, events.Usage))
    return used


weights = pytest.mark.weights


@weights
def test_it_answers_in_words_that_end_once(talker):
    said = talker.hear(ask("What is the capital of France?"))
    assert "Paris" in text_of(said)
    assert [type(word) for word in said[-2:]] == [events.Usage, events.ResponseEnded]
    assert sum(isinstance(word, events.ResponseEnded | events.ResponseFailed) for word in said) == 1
    assert used_of(said).output_tokens > 0


@weights
def test_it_counts_what_it_will_read_also_of_what_is_too_long(babbler):
    asked = ask("What is the capital of France?", instructions="Be brief.", tools=(TOOL,))
    assert babbler.runner.run(babbler.engine.count(asked)) == used_of(babbler.hear(asked)).input_tokens
    assert babbler.runner.run(babbler.engine.count(ask("word " * 3000))) > 3000


def test_a_model_that_is_not_loaded_counts_nothing(tmp_path):
    with pytest.raises(ServerError, match="not loaded"):
        asyncio.run(build(SMALL, {}, place(tmp_path)).count(ask("Hi")))


@weights
def test_the_second_turn_reads_only_what_is_new(babbler):
    first = babbler.hear(ask("Name a colour, please, and say why you like it."), tenant="warm")
    again = ask("Name a colour, please, and say why you like it.", message("assistant", text_of(first)), "Another.")
    used = used_of(babbler.hear(again, tenant="warm"))
    assert used.cached_tokens >= used_of(first).input_tokens - 1
    assert used_of(babbler.hear(again, tenant="someone else")).cached_tokens == 0


@weights
def test_what_it_was_told_to_foresee_it_has_read_when_it_is_asked(babbler):
    asked = ask("Tell me what you would like to have for breakfast, and why.", instructions="You are a parrot that loves sunflower seeds.")
    foreseen = ask("Tell me what you would like to have for", instructions=asked.instructions)
    used = used_of(babbler.hear(commands.Prepare(ask("")), commands.Prepare(foreseen), asked, tenant="parrot"))
    assert used.input_tokens - 20 < used.cached_tokens < used.input_tokens


@weights
def test_what_can_not_be_foreseen_is_told_when_it_is_asked(babbler):
    asked = ask("word " * 3000)
    (broke,) = babbler.hear(commands.Prepare(asked), asked)
    assert broke.code == "context_length_exceeded"


@weights
def test_leaving_while_it_reads_ahead_stops_it(babbler):
    async def leave():
        async with babbler.engine.open(ConversationSettings(model=SMALL), lambda _: None) as conversation:
            conversation.send(commands.Prepare(ask("word " * 450)))
            await asyncio.sleep(0)

    babbler.runner.run(leave())
    assert text_of(babbler.hear(ask("What is the capital of France?")))


@weights
def test_what_is_read_ahead_gives_way_to_somebody_elses_answer_and_is_read_afterwards(talker):
    async def both():
        async with talker.engine.open(ConversationSettings(model=SMALL), lambda _: None) as conversation, asyncio.timeout(60):
            conversation.send(commands.Prepare(ask("bird " * 450)))
            while not talker.engine.prefill_scheduler.is_prefilling(conversation):  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(0)
            read = []
            await talker._hear(
                (ask("Name a bird."),), "", lambda *_: read.append(talker.engine.prefill_scheduler.is_prefilling(conversation))
            )
            assert not any(read[:-1])
            while not talker.engine.prefill_scheduler.is_prefilling(conversation):  # noqa: ASYNC110 - nor here
                await asyncio.sleep(0)

    talker.runner.run(both())


@weights
def test_the_token_limit_cuts_the_answer(babbler):
    said = babbler.hear(ask("Count to one hundred.", sampling=Sampling(temperature=0, max_tokens=4)))
    assert said[-1] == events.ResponseEnded("r", "length")
    assert used_of(said).output_tokens == 4


@pytest.mark.long
@weights
def test_without_a_limit_a_full_window_cuts_the_answer(talker):
    endless = JsonSchema("endless", {"type": "array", "items": {"const": 1}, "minItems": 500})
    said = talker.hear(ask("Go on. " * 135, format=endless, sampling=Sampling()))
    assert said[-1] == events.ResponseEnded("r", "length")
    used = used_of(said)
    assert used.input_tokens + used.output_tokens == 512 and used.output_tokens > 20


@weights
def test_log_probabilities_come_with_their_tokens(babbler):
    said = babbler.hear(ask("Say yes.", sampling=Sampling(temperature=0, max_tokens=3, top_logprobs=2)))
    likely = [one for word in said if isinstance(word, events.TextDelta) for one in word.logprobs]
    assert "".join(one.token.token for one in likely) == text_of(said)
    assert all(len(one.alternatives) == 2 and one.token.logprob <= 0 for one in likely)
    assert bytes(likely[0].token.bytes).decode() == likely[0].token.token


@weights
def test_the_token_that_ends_an_answer_has_no_log_probability(talker):
    said = talker.hear(ask("What is the capital of France?", sampling=Sampling(temperature=0, top_logprobs=0)))
    texts = [word for word in said if isinstance(word, events.TextDelta)]
    assert said[-1] == events.ResponseEnded("r", "stop")
    assert all(word.text and word.logprobs for word in texts)
    assert used_of(said).output_tokens == sum(len(word.logprobs) for word in texts) + 1


@weights
def test_the_same_seed_says_the_same(babbler):
    warm = Sampling(temperature=1.5, max_tokens=12, extra={"seed": 7})
    assert text_of(babbler.hear(ask("Tell me a story.", sampling=warm))) == text_of(babbler.hear(ask("Tell me a story.", sampling=warm)))


@weights
def test_a_stop_text_ends_the_answer_before_it(talker):
    said = talker.hear(ask("What is the capital of France?", sampling=Sampling(temperature=0, max_tokens=24, extra={"stop": "Paris"})))
    assert "Paris" not in text_of(said) and said[-1] == events.ResponseEnded("r", "stop", "Paris")


@weights
def test_a_schema_is_kept_to(babbler):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120, "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = json.loads(text_of(babbler.hear(ask("Ada is 36.", format=JsonSchema("person", schema, strict=True)))))
    assert answer.keys() == {"name", "age"} and 0 <= answer["age"] <= 120


@pytest.mark.long
@weights
def test_a_short_question_is_answered_while_long_prompts_are_processed(talker):
    long = [ask(f"{word} " * 350, id=word) for word in ("bird", "tree")]
    short = ask("Hi", id="short", sampling=Sampling(temperature=0, max_tokens=1))
    said = talker.hear(*long, short, tenant="turns")
    ended = [event.id for event in said if isinstance(event, events.ResponseEnded)]
    assert sorted(ended) == ["bird", "short", "tree"]
    assert ended[-1] != "short", "with all slots taken by long prompts, it would be the last"
    used = next(event for event in said if isinstance(event, events.Usage) and event.id == "bird")
    assert used.cached_tokens < 100, "what was processed for this very response is not from the cache"


@weights
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "wat"},
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}},
            "required": ["a"],
            "additionalProperties": False,
        },
    ],
)
def test_a_schema_that_can_not_be_kept_to_breaks_the_answer(babbler, schema):
    (broke,) = babbler.hear(ask("Ada", format=JsonSchema("x", schema, strict=True)))
    assert (broke.status, broke.code, broke.param) == (400, "invalid_json_schema", "text.format.schema")


@weights
def test_a_required_call_is_made_and_its_arguments_stream(babbler):
    said = babbler.hear(ask("Five minutes, please.", tools=(TOOL,), tool_choice=ToolChoice("required")))
    assert isinstance(said[0], events.ToolCallStarted) and said[0].name == "set_timer"
    pieces = [word.text for word in said if isinstance(word, events.ToolArgumentsDelta)]
    assert len(pieces) > 1 and isinstance(json.loads("".join(pieces))["seconds"], int)
    assert said[-3] == events.ToolCallDone("r", said[0].call_id)
    assert used_of(said).output_tokens > 0


@weights
def test_a_required_custom_call_gives_its_text(babbler):
    said = babbler.hear(ask("List files.", tools=(CustomTool("shell"),), tool_choice=ToolChoice("required", ("shell",))))
    assert said[0].custom and said[0].name == "shell"


@weights
def test_too_long_an_input_is_refused_with_both_lengths(babbler):
    (broke,) = babbler.hear(ask("word " * 2000))
    assert (broke.code, broke.status, broke.param) == ("context_length_exceeded", 400, "input")
    assert "512 tokens" in broke.message


@weights
def test_with_truncation_the_oldest_turns_go_and_the_instructions_stay(babbler):
    history = [message(role, f"{number} " + "blah " * 60) for number in range(12) for role in ("user", "assistant")]
    said = babbler.hear(ask(*history, "Hello?", truncate=True, instructions="Be kind."))
    used = used_of(said)
    assert 256 < used.input_tokens <= 512 - 24
    (broke,) = babbler.hear(ask("word " * 2000, truncate=True))
    assert broke.code == "context_length_exceeded"


@weights
def test_control_tokens_in_what_people_say_are_only_text(babbler):
    plain = used_of(babbler.hear(ask("x"))).input_tokens
    assert used_of(babbler.hear(ask("x<|im_end|>"))).input_tokens > plain + 1


@weights
def test_a_cancel_ends_the_answer(talker):
    told = []

    def cancel(said, tell):
        if said and not told:  # a busy machine delivers several words at once
            told.append(True)
            tell(commands.Cancel("r"))

    said = talker.hear(ask("Tell me a long story.", sampling=Sampling(max_tokens=900)), until=cancel)
    assert said[-1] == events.ResponseEnded("r", "cancelled")
    assert not any(isinstance(word, events.Usage) for word in said)


@weights
def test_a_cancel_before_anything_was_done_ends_the_answer_too(babbler):
    assert babbler.hear(ask("Hi"), commands.Cancel("r")) == [events.ResponseEnded("r", "cancelled")]


@weights
def test_a_cancel_while_the_prompt_is_read_frees_the_slot(babbler):
    long = ask("word " * 450, id="long")
    both = babbler.hear(long, ask("word " * 450, id="too"), ask("Hi", id="hi"), commands.Cancel("long"), commands.Cancel("too"))
    assert {word for word in both if isinstance(word, events.ResponseEnded)} >= {
        events.ResponseEnded("long", "cancelled"),
        events.ResponseEnded("too", "cancelled"),
    }
    assert both[-1].id == "hi"


@weights
def test_a_completion_right_after_another_finds_an_open_connection(babbler):
    """The native server closes a connection after a completion; the next request must not be sent on it."""
    llama, always = babbler.engine._require_llama(), asyncio.Event()
    always.set()

    async def two_in_a_row():
        tokens = await llama.tokenize(("Say yes.", False))
        for _ in range(4):
            await llama.complete({"prompt": tokens, "stream": True, "n_predict": 2}, always, lambda _chunks: True)

    babbler.runner.run(two_in_a_row())


@weights
def test_more_answers_than_slots_take_turns(babbler):
    said = babbler.hear(*(ask(f"Say {number}.", id=str(number)) for number in range(5)))
    assert sorted(word.id for word in said if isinstance(word, events.ResponseEnded)) == ["0", "1", "2", "3", "4"]


@weights
def test_beyond_its_queue_it_takes_no_more(babbler):
    async def crowd():
        async with babbler.engine.open(ConversationSettings(model=SMALL), lambda _: None) as conversation:
            for number in range(2 + MAX_WAITING_RESPONSES):
                conversation.send(ask("Hi", id=str(number)))
            with pytest.raises(EngineOverrun):
                conversation.send(ask("Hi", id="one too many"))

    babbler.runner.run(crowd())


@weights
def test_leaving_the_conversation_delivers_nothing_more(talker):
    said = []

    async def leave():
        begun = asyncio.Event()

        def deliver(words):
            said.extend(words)
            begun.set()

        async with talker.engine.open(ConversationSettings(model=SMALL), deliver) as conversation:
            conversation.send(ask("Tell me a long story.", sampling=Sampling(max_tokens=900)))
            await begun.wait()
        heard = len(said)
        await asyncio.sleep(0)
        return heard

    heard = talker.runner.run(leave())
    assert len(said) == heard and not any(isinstance(word, events.ResponseEnded | events.ResponseFailed) for word in said)


@weights
def test_a_paused_conversation_waits_and_then_says_it_all(talker):
    said = []

    async def pause():
        over = asyncio.Event()

        def deliver(words):
            said.extend(words)
            conversation.pause()
            asyncio.get_running_loop().call_soon(conversation.resume)
            if isinstance(words[-1], events.ResponseEnded):
                over.set()

        async with talker.engine.open(ConversationSettings(model=SMALL), deliver) as conversation:
            conversation.send(ask("What is the capital of France?"))
            async with asyncio.timeout(60):
                await over.wait()

    talker.runner.run(pause())
    assert "Paris" in text_of(said)


@weights
def test_any_gguf_by_path_answers_through_its_own_template():
    path = WEIGHTS / SMALL / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with asyncio.Runner() as runner:
        engine = build(
            "mine", {"path": path.name, "context": 512, "slots": 1}, BuildContext(weights_folder=WEIGHTS, base_folder=path.parent)
        )
        runner.run(engine.start())
        said = Talker(engine, runner).hear(ask("What is the capital of France?"))
        assert "Paris" in text_of(said)
        runner.run(engine.stop())


@weights
def test_stopping_breaks_off_what_is_being_answered(shallow):
    with asyncio.Runner() as runner:
        engine = build("m", {"path": shallow, "context": 512, "slots": 1}, BuildContext(weights_folder=WEIGHTS, base_folder=Path()))
        runner.run(engine.start())
        # A native server that is stopped before it was ever asked may wait for itself for ever.
        Talker(engine, runner).hear(ask("Hi", sampling=Sampling(max_tokens=1)))
        said = []

        async def stop():
            both = asyncio.Event()

            def deliver(words):
                said.extend(words)
                if len(said) == 2:
                    both.set()

            async with engine.open(ConversationSettings(model=SMALL), deliver) as conversation:
                conversation.send(ask("Tell me a long story.", sampling=Sampling()))
                await engine.stop()
                conversation.send(ask("Hello?", id="late"))
                await both.wait()

        runner.run(stop())
        assert [(word.id, word.status) for word in said] == [("r", 503), ("late", 500)]


def test_what_an_answer_is_sampled_with_is_told_for_any_file(tmp_path):
    abilities = build("mine", {"path": "any.gguf"}, place(tmp_path)).capabilities
    assert (abilities.temperature_default, abilities.top_p_default) == (0.8, 0.95)
