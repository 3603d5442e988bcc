"""The scripted engine: it plays its script, and stops when it is cancelled."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import BuildContext, EngineOverrun
from antiphon.engine_api.options import ConversationSettings, Sampling, Voice
from antiphon.engines.scripted.engine import build
from antiphon.errors import ServerError

SETTINGS = ConversationSettings(model="parrot")


def engine(place=Path(), **options):
    return build("parrot", options, BuildContext(weights_folder=Path("unused"), base_folder=place))


def ask(text, id="resp_1", **more):
    return commands.Respond(id=id, history=(history.Message("user", (history.TextPart(text),)),), **more)


def answers(scripted, *words_to_engine):
    """All that the engine says to these words, until every response among them has ended."""

    async def talk_it_over():
        said, over = [], asyncio.Event()
        waiting = {word.id for word in words_to_engine if isinstance(word, commands.Respond)}

        def deliver(words):
            for word in words:
                said.append(word)
                if isinstance(word, events.ResponseEnded | events.ResponseFailed):
                    waiting.discard(word.id)
            if not waiting:
                over.set()

        async with scripted.open(SETTINGS, deliver) as conversation:
            for word in words_to_engine:
                conversation.send(word)
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await over.wait()
        return said

    return asyncio.run(talk_it_over())


def test_without_a_script_it_repeats_the_last_message_word_by_word():
    said = answers(engine(), ask("Pretty Polly wants it"))
    assert [word.text for word in said if isinstance(word, events.TextDelta)] == ["Pretty", " Polly", " wants", " it"]
    assert said[-2:] == [events.Usage(id="resp_1", input_tokens=4, output_tokens=4), events.ResponseEnded("resp_1")]


def test_the_first_answer_whose_pattern_is_found_is_given():
    scripted = engine(answers=[{"when": "weath.r", "say": "Rain."}, {"say": "What?"}])
    assert answers(scripted, ask("The WEATHER?"))[0].text == "Rain."
    assert answers(scripted, ask("Hello"))[0].text == "What?"


def test_a_call_is_made_and_its_result_answered(tmp_path):
    (tmp_path / "s.toml").write_text(
        """
        [[answers]]
        to = "result"
        say = "It is {input}."
        [[answers]]
        lines = [{ call = "clock", arguments = { zone = "UTC" }, call_id = "c1" }]
        """
    )
    scripted = engine(tmp_path, script="s.toml")
    said = answers(scripted, ask("Time?"))
    assert said[0] == events.ToolCallStarted("resp_1", "c1", "clock")
    assert "".join(word.text for word in said if isinstance(word, events.ToolArgumentsDelta)) == '{"zone":"UTC"}'
    result = commands.Respond(id="resp_2", history=(history.ToolResult("c1", (history.TextPart("noon"),)),))
    assert "".join(word.text for word in answers(scripted, result) if isinstance(word, events.TextDelta)) == "It is noon."


def test_every_kind_of_line_is_said():
    lines = [
        {"reasoning": "hm"},
        {"summary": "thought"},
        {"encrypted_content": "xyz"},
        {"text": "See"},
        {"annotation": {"type": "file_path", "file_id": "f", "index": 0}},
        {"refusal": "no"},
        {"call": "note", "input": "free text"},
        {"wait_ms": 1},
        {"usage": {"input_tokens": 7, "reasoning_tokens": 3}},
        {"finish_reason": "length"},
        {"text": "never said"},
    ]
    said = answers(engine(answers=[{"lines": lines}]), ask("go"))
    kinds = [type(word).__name__ for word in said]
    assert kinds == [
        "ReasoningDelta",
        "ReasoningDelta",
        "ReasoningBoundary",
        "EncryptedReasoning",
        "TextDelta",
        "AnnotationAdded",
        "RefusalDelta",
        "ToolCallStarted",
        "ToolArgumentsDelta",
        "ToolArgumentsDelta",
        "ToolCallDone",
        "Usage",
        "ResponseEnded",
    ]
    assert said[-1].reason == "length"
    assert said[-2].reasoning_tokens == 3


def limited(tokens, *lines, **more):
    return answers(engine(answers=[{"lines": list(lines)}]), ask("go", sampling=Sampling(max_tokens=tokens), **more))


def test_the_token_limit_cuts_the_answer_before_the_first_word_too_many():
    said = limited(3, {"reasoning": "hm"}, {"text": "one two three four"}, {"usage": {"output_tokens": 99}})
    assert [word.text for word in said[:-2]] == ["hm", "one", " two"]
    used = events.Usage(id="resp_1", input_tokens=1, output_tokens=3, reasoning_tokens=1)
    assert said[-2:] == [used, events.ResponseEnded("resp_1", "length")]


def test_log_probabilities_are_given_where_they_are_asked_for():
    texts = [
        [each for each in answers(engine(), ask("Hi you", sampling=Sampling(top_logprobs=limit))) if isinstance(each, events.TextDelta)]
        for limit in (None, 0, 2)
    ]
    assert [each.text for each in texts[1]] == ["Hi", " you"] and texts[0] == [events.TextDelta("resp_1", each.text) for each in texts[1]]
    [logprob] = texts[2][1].logprobs
    assert (logprob.token.token, logprob.token.bytes, logprob.alternatives) == (" you", tuple(b" you"), (logprob.token,))
    assert texts[1][1].logprobs[0].alternatives == ()


def test_keys_beside_the_script_count_before_those_of_its_file(tmp_path):
    (tmp_path / "s.toml").write_text('answers = [{ say = "From the file." }]\n[abilities]\nimages = false')
    scripted = engine(tmp_path, script="s.toml", abilities={"tools": False})
    assert (scripted.capabilities.images, scripted.capabilities.tools) == (True, False)
    assert answers(scripted, ask("Hi"))[0].text == "From"


def test_an_answer_as_long_as_the_limit_is_whole():
    said = limited(4, {"text": "one two"}, {"call": "clock", "arguments": '{"zone": "UTC"}'}, {"annotation": {"type": "x"}})
    assert [type(word).__name__ for word in said[-4:]] == ["ToolCallDone", "AnnotationAdded", "Usage", "ResponseEnded"]
    assert said[-1].reason == "stop"


def test_the_token_limit_cuts_a_call_or_lets_none_begin():
    call = {"call": "clock", "arguments": '{"zone": "UTC"}', "call_id": "c1"}
    assert limited(2, {"text": "one"}, call)[1:-2] == [
        events.ToolCallStarted("resp_1", "c1", "clock"),
        events.ToolArgumentsDelta("resp_1", "c1", '{"zone":'),
    ]
    assert limited(1, {"text": "one"}, call)[:-2] == [events.TextDelta("resp_1", "one")]


@pytest.mark.parametrize("tokens", [5, 6])
def test_the_token_limit_counts_what_sounds(tokens):
    # The word is a token and sounds for 300 ms, which are six; pieces of 100 ms are two each.
    said = limited(tokens, {"text": "Hello"}, {"text": " there"}, voice=Voice(rate_hz=24_000))
    assert [type(word).__name__ for word in said] == ["AudioTranscriptDelta", "AudioDelta", "AudioDelta", "Usage", "ResponseEnded"]
    assert (said[-2].output_tokens, said[-2].output_audio_tokens, said[-1].reason) == (5, 4, "length")


def test_a_failure_ends_the_answer():
    said = answers(engine(answers=[{"lines": [{"text": "a"}, {"failure": {"status": 429, "code": "slow_down"}}]}]), ask("go"))
    assert isinstance(said[-1], events.ResponseFailed)
    assert (said[-1].status, said[-1].code) == (429, "slow_down")


def test_cancel_ends_the_answer_as_cancelled():
    scripted = engine(pace_ms=5, answers=[{"lines": [{"text": "la ", "repeat": 1_000_000}]}])
    said = answers(scripted, ask("sing"), commands.Cancel("resp_1"))
    assert said[-1] == events.ResponseEnded("resp_1", "cancelled")


def test_words_without_a_pace_come_in_one_delivery_and_with_one_come_singly():
    async def deliveries(scripted):
        came, over = [], asyncio.Event()

        def deliver(words):
            came.append(len(words))
            if isinstance(words[-1], events.ResponseEnded):
                over.set()

        async with scripted.open(SETTINGS, deliver) as conversation:
            conversation.send(ask("one two three"))
            await over.wait()
        return came

    assert asyncio.run(deliveries(engine())) == [5]
    assert len(asyncio.run(deliveries(engine(pace_ms=0.1)))) >= 3


def test_a_paused_conversation_says_nothing_until_it_is_resumed():
    async def scenario():
        came, over = [], asyncio.Event()

        def deliver(words):
            came.extend(words)
            if isinstance(words[-1], events.ResponseEnded):
                over.set()

        async with engine(pace_ms=0.1).open(SETTINGS, deliver) as conversation:
            conversation.pause()
            conversation.send(ask("one two"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert came == []
            conversation.resume()
            await over.wait()

    asyncio.run(scenario())


def test_leaving_the_conversation_delivers_nothing_more():
    async def scenario():
        came = []
        async with engine(pace_ms=1).open(SETTINGS, came.extend) as conversation:
            conversation.send(ask("one two three"))
            await asyncio.sleep(0)
        count = len(came)
        await asyncio.sleep(0.01)
        assert len(came) == count

    asyncio.run(scenario())


def test_more_answers_than_there_is_room_for_are_refused():
    async def scenario():
        async with engine(pace_ms=1000).open(SETTINGS, lambda _words: None) as conversation:
            with pytest.raises(EngineOverrun):
                for number in range(100):
                    conversation.send(ask("go", id=f"resp_{number}"))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scrpt": "x.toml"}, "scrpt"),
        ({"script": "missing.toml"}, "missing.toml"),
        ({"answers": [{"when": "(", "say": "x"}]}, "parrot"),
        ({"answers": [{"lines": [{"texts": "x"}]}]}, "texts"),
        ({"abilities": {"images": "perhaps"}}, "images"),
        ({"hears": [{"say": "x"}]}, "say"),
        ({"speech": [{"at_ms": 100, "until_ms": 100}]}, "speech"),
        ({"speech": [{"at_ms": 0, "until_ms": 100}, {"at_ms": 50, "until_ms": 150}]}, "speech"),
        ({"answers": [{"lines": [{"sound": "missing.wav"}]}]}, "missing.wav"),
    ],
)
def test_a_wrong_script_is_refused_by_name(options, named):
    with pytest.raises(ServerError, match=named.replace("(", r"\(")):
        engine(**options)


def test_it_needs_no_library_for_sound():
    heavy = ("numpy", "soxr", "onnxruntime")
    script = "import sys; import antiphon.engines.scripted.engine; print([name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
