"""What a scripted engine hears: turns on the conversation's clock, and their transcripts."""

import asyncio

from hypothesis import given, strategies as st
from msgspec import structs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import ConversationSettings, Transcription
from support.engines.hearings import LISTEN, ask, engine, noise, quiet, telling

BY_HAND = structs.replace(LISTEN, turn_detection=None)
TURN = noise(400) + quiet(500)


def talked(scripted, scenario, *first):
    async def play():
        async with telling(scripted, *first) as told:
            await scenario(told)
            await told.settle()
            return told

    return asyncio.run(play())


def test_a_turn_is_told_committed_and_transcribed_in_that_order():
    async def scenario(told):
        await told.hear(quiet(1000), noise(400), quiet(600))

    told = talked(engine(hears=[{"says": "hello there"}]), scenario, LISTEN)
    assert told.words == [
        events.SpeechStarted("turn_1", 700),
        events.SpeechStopped("turn_1", 1900),
        events.InputTranscriptDelta("turn_1", "hello"),
        events.InputTranscriptDelta("turn_1", " there"),
        events.InputTranscriptDone(id="turn_1", transcript="hello there", seconds=1.2),
    ]


def test_turns_that_come_in_one_piece_of_sound_all_come_out_in_order():
    async def scenario(told):
        await told.hear(quiet(500) + TURN * 3 + noise(100))

    told = talked(engine(), scenario, LISTEN)
    assert told.edges() == [
        ("SpeechStarted", "turn_1", 200),
        ("SpeechStopped", "turn_1", 1400),
        ("SpeechStarted", "turn_2", 1400),
        ("SpeechStopped", "turn_2", 2300),
        ("SpeechStarted", "turn_3", 2300),
        ("SpeechStopped", "turn_3", 3200),
        ("SpeechStarted", "turn_4", 3200),
    ]
    assert told.transcripts() == [("turn_1", "speech of 1200 ms"), ("turn_2", "speech of 900 ms"), ("turn_3", "speech of 900 ms")]


def test_without_turn_detection_nothing_is_found_and_what_is_committed_is_transcribed():
    async def scenario(told):
        await told.hear(TURN, TURN)
        assert told.words == []
        told.send(commands.CommitAudio("item_7"))
        await told.hear(quiet(100))
        told.send(commands.CommitAudio("item_8"))

    told = talked(engine(), scenario, BY_HAND)
    assert told.transcripts() == [("item_7", "speech of 1800 ms"), ("item_8", "speech of 100 ms")]
    assert told.edges() == []


def test_nothing_is_transcribed_where_nobody_wants_to_read_it():
    async def scenario(told):
        await told.hear(TURN)

    told = talked(engine(), scenario, structs.replace(LISTEN, transcription=None))
    assert [type(word) for word in told.words] == [events.SpeechStarted, events.SpeechStopped]


def test_committing_an_open_turn_ends_it_without_a_stop():
    async def scenario(told):
        await told.hear(quiet(1000), noise(400))
        told.send(commands.CommitAudio("turn_1"))
        await told.hear(quiet(2000), TURN)

    told = talked(engine(), scenario, LISTEN)
    assert told.edges() == [("SpeechStarted", "turn_1", 700), ("SpeechStarted", "turn_2", 3100), ("SpeechStopped", "turn_2", 4300)]
    assert told.transcripts() == [("turn_1", "speech of 700 ms"), ("turn_2", "speech of 1200 ms")]


def test_a_forgotten_turn_is_no_turn_and_its_sound_is_nobodys():
    async def scenario(told):
        await told.hear(quiet(1000), noise(400))
        told.send(commands.ClearAudio())
        await told.hear(noise(400), quiet(500))

    told = talked(engine(), scenario, LISTEN)
    assert told.edges() == [("SpeechStarted", "turn_1", 700), ("SpeechStarted", "turn_2", 1400), ("SpeechStopped", "turn_2", 2300)]
    assert told.transcripts() == [("turn_2", "speech of 900 ms")]


def test_no_turn_is_found_in_what_was_committed_or_forgotten_in_the_same_breath():
    async def scenario(told):
        told.send(
            commands.AppendAudio(TURN),
            commands.ClearAudio(),
            commands.AppendAudio(TURN),
            commands.CommitAudio("item_1"),
            commands.AppendAudio(noise(100)),
        )
        await told.settle()

    told = talked(engine(), scenario, LISTEN)
    assert told.edges() == [("SpeechStarted", "turn_1", 1800)]
    assert told.transcripts() == [("item_1", "speech of 900 ms")]


def test_detection_that_is_switched_off_drops_the_open_turn_and_on_again_begins_anew():
    async def scenario(told):
        await told.hear(noise(400))
        told.send(BY_HAND)
        await told.hear(quiet(2000))
        told.send(LISTEN)
        await told.hear(TURN)

    told = talked(engine(), scenario, LISTEN)
    assert [edge[1:] for edge in told.edges()] == [("turn_1", 0), ("turn_2", 2100), ("turn_2", 3300)]


def test_the_sound_of_a_turn_that_detection_was_switched_off_in_can_still_be_committed():
    async def scenario(told):
        await told.hear(quiet(1000), noise(400))
        told.send(BY_HAND, commands.CommitAudio("item_1"))

    assert talked(engine(), scenario, LISTEN).transcripts() == [("item_1", "speech of 1400 ms")]


def test_settings_apply_to_the_sound_after_them_within_one_breath():
    async def scenario(told):
        told.send(commands.AppendAudio(TURN), BY_HAND, commands.AppendAudio(TURN))
        await told.settle()

    told = talked(engine(), scenario, LISTEN)
    assert told.edges() == [("SpeechStarted", "turn_1", 0), ("SpeechStopped", "turn_1", 900)]


def test_the_clock_goes_on_when_the_rate_changes():
    async def scenario(told):
        await told.hear(quiet(1000))
        told.send(structs.replace(LISTEN, rate_hz=8_000))
        await told.hear(quiet(1000, 8_000), noise(100, rate_hz=8_000))

    assert talked(engine(), scenario, LISTEN).edges() == [("SpeechStarted", "turn_1", 1700)]


def test_speech_by_script_is_at_its_times_whatever_the_sound():
    async def scenario(told):
        for _ in range(100):
            await told.hear(quiet(20))

    scripted = engine(speech=[{"at_ms": 210, "until_ms": 900}, {"at_ms": 1000, "until_ms": 1990}])
    assert [edge[1:] for edge in talked(scripted, scenario, LISTEN).edges()] == [
        ("turn_1", 210),
        ("turn_1", 900),
        ("turn_2", 1000),
        ("turn_2", 1990),
    ]


def test_each_turn_is_heard_as_the_script_says():
    hears = [
        {"turn": 2, "fails": {"message": "Too noisy.", "code": "unintelligible"}},
        {
            "turn": 3,
            "says": "Guten Tag",
            "languages": ["de"],
            "segments": [{"text": "Guten Tag", "start_s": 0, "end_s": 1, "speaker": "A"}],
        },
        {"says": "again"},
    ]

    async def scenario(told):
        await told.hear(TURN * 4)

    told = talked(engine(hears=hears), scenario, LISTEN)
    assert told.transcripts() == [("turn_1", "again"), ("turn_3", "Guten Tag"), ("turn_4", "again")]
    assert events.InputTranscriptFailed(id="turn_2", message="Too noisy.", code="unintelligible") in told.words
    assert events.InputTranscriptSegment(id="turn_3", text="Guten Tag", start_s=0, end_s=1, speaker="A") in told.words
    (german,) = [word for word in told.words if isinstance(word, events.InputTranscriptDone) and word.id == "turn_3"]
    assert german.languages == ("de",)


def test_log_probabilities_are_told_where_they_are_wanted():
    async def scenario(told):
        await told.hear(TURN)

    listen = structs.replace(LISTEN, transcription=Transcription(logprobs=True))
    told = talked(engine(hears=[{"says": "so be"}]), scenario, listen)
    so, be = (word.logprobs[0] for word in told.words if isinstance(word, events.InputTranscriptDelta))
    assert be == events.TokenLogprob(events.TokenCandidate(" be", 0.0, (32, 98, 101)))
    assert told.words[-1].logprobs == (so, be)


def test_a_transcript_may_come_late_and_turns_go_on_meanwhile():
    async def scenario(told):
        await told.hear(TURN * 2)
        assert told.transcripts() == [("turn_2", "soon")]
        await told.until(lambda: len(told.transcripts()) == 2)

    told = talked(engine(hears=[{"turn": 1, "says": "late", "delay_ms": 20}, {"says": "soon"}]), scenario, LISTEN)
    assert told.transcripts() == [("turn_2", "soon"), ("turn_1", "late")]


def test_an_answer_is_chosen_by_what_its_turn_was_heard_as():
    scripted = engine(hears=[{"turn": 1, "says": "the weather?"}], answers=[{"when": "weather", "say": "Rain."}])

    async def scenario(told):
        await told.hear(TURN * 2)
        for id, part in {
            "by_turn": history.SpeechPart(TURN, 24_000, "turn_1"),
            "by_transcript": history.SpeechPart(TURN, 24_000, "turn_2", "Weather!"),
            "by_length": history.SpeechPart(quiet(120), 24_000),
        }.items():
            told.send(ask(part, id=id))
            await told.ended(id)

    told = talked(scripted, scenario, LISTEN)
    said = {
        id: "".join(word.text for word in told.words if isinstance(word, events.TextDelta) and word.id == id)
        for id in ("by_turn", "by_transcript", "by_length")
    }
    assert said == {"by_turn": "Rain.", "by_transcript": "Rain.", "by_length": "speech of 120 ms"}


def test_a_turn_can_be_answered_from_within_its_delivery():
    async def play():
        words, over = [], asyncio.Event()

        def answer(delivered):
            words.extend(delivered)
            for word in delivered:
                if isinstance(word, events.SpeechStopped):
                    conversation.send(ask(history.SpeechPart(TURN, 24_000, word.id)))
                if isinstance(word, events.ResponseEnded):
                    over.set()

        async with engine(hears=[{"says": "hello"}]).open(ConversationSettings(model="parrot"), answer) as conversation:
            conversation.send(LISTEN)
            conversation.send(commands.AppendAudio(TURN))
            await over.wait()
        return words

    assert [word.text for word in asyncio.run(play()) if isinstance(word, events.TextDelta)] == ["hello"]


def test_speech_is_told_of_while_the_client_is_behind():
    async def scenario(told):
        told.conversation.pause()
        await told.hear(TURN)
        assert len(told.edges()) == 2
        assert told.transcripts() == []
        told.conversation.resume()

    assert talked(engine(), scenario, LISTEN).transcripts() == [("turn_1", "speech of 900 ms")]


def test_leaving_tells_nothing_of_what_was_just_heard():
    async def play():
        async with telling(engine(hears=[{"delay_ms": 1}]), LISTEN) as told:
            await told.hear(TURN)
            told.send(commands.AppendAudio(TURN))
            count = len(told.words)
        await told.settle()
        return len(told.words) - count

    assert asyncio.run(play()) == 0


def test_leaving_does_not_wait_for_what_is_still_to_be_said():
    async def play():
        async with asyncio.timeout(10), telling(engine(hears=[{"delay_ms": 1e9}]), LISTEN) as told:
            await told.hear(TURN)
        return told

    assert asyncio.run(play()).transcripts() == []


SOUNDS = st.tuples(st.sampled_from([noise, quiet]), st.integers(1, 700)).map(lambda made: commands.AppendAudio(made[0](made[1])))
WORDS = st.one_of(SOUNDS, SOUNDS, SOUNDS, st.sampled_from([commands.CommitAudio("hand"), commands.ClearAudio(), LISTEN, BY_HAND, None]))


@given(st.lists(WORDS, max_size=30))
def test_whatever_is_heard_committed_and_forgotten_turns_follow_each_other(script):
    async def scenario(told):
        for word in script:
            if word is None:
                await told.settle()
            else:
                told.send(word)

    told = talked(engine(), scenario, LISTEN)
    edges = told.edges()
    times = [at_ms for _, _, at_ms in edges]
    assert times == sorted(times)
    heard_ms = sum(len(word.pcm) for word in script if isinstance(word, commands.AppendAudio)) / 48
    assert not times or times[-1] <= heard_ms
    stopped = [id for kind, id, _ in edges if kind == "SpeechStopped"]
    for before, after in zip([None, *edges], edges, strict=False):
        assert after[0] == "SpeechStarted" or before[:2] == ("SpeechStarted", after[1])
    assert len(set(stopped)) == len(stopped)
