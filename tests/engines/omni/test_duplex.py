"""A model that hears, sees and speaks all the time, on workers of each kind."""

import base64

import pytest

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import Voice
from support.engines.omni_doubles import GatewayWorker, Native, Worker, conversing, engine, facing, floats_of, loud, played, quiet

KINDS = [
    pytest.param(Worker, {}, id="python"),
    pytest.param(GatewayWorker, {"protocol": "worker"}, id="worker"),
    pytest.param(Native, {}, id="native"),
]


async def begun(client, **converse):
    client.tell(commands.StartDuplex(**converse))
    return await client.log.some(events.DuplexStarted)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_it_listens_while_nobody_speaks_and_speaks_when_somebody_did(kind, options):
    async def scenario():
        async with facing(worker := kind(), **options) as client:
            (ready,) = await begun(client, instructions="Be kind.")
            assert ready.metrics == {"kv_cache_length": 40}
            client.tell(commands.AppendAudio(quiet()))
            await client.log.some(events.Listening)
            client.tell(commands.AppendAudio(loud()), commands.AppendAudio(loud()))
            await client.log.some(events.AudioDelta, count=2)
            assert not client.log.of(events.ResponseEnded), "it may go on speaking"
            client.tell(commands.AppendAudio(quiet()))
            (ended, *_) = await client.log.some(events.ResponseEnded)
            said = [word for word in client.log.words if word.id == ended.id and not isinstance(word, events.EngineMetrics)]
            assert [type(word) for word in said] == [
                events.AudioTranscriptDelta,
                events.AudioDelta,
                events.AudioTranscriptDelta,
                events.AudioDelta,
                events.ResponseEnded,
            ]
            assert {len(word.pcm) for word in said if isinstance(word, events.AudioDelta)} == {48_000}
            assert worker.inits[0]["mode"] == "full_duplex"
            assert worker.inits[0]["system_prompt"] == "Be kind."
        assert not worker.breaches

    played(scenario)


def test_sound_goes_as_float_and_comes_back_as_whole_numbers():
    async def scenario():
        async with facing(worker := Worker()) as client:
            await begun(client)
            client.tell(commands.AppendAudio(loud()))
            (sound, *_) = await client.log.some(events.AudioDelta)
            assert set(floats_of(worker.asked[0]["audio"])) == {0.25}
            assert len(floats_of(worker.asked[0]["audio"])) == 16_000
            assert set(sound.pcm[::2]) == {0x00}
            assert set(sound.pcm[1::2]) == {0x20}

    played(scenario)


def test_a_turn_of_the_model_ends_once_though_the_native_server_says_done_at_each_step():
    async def scenario():
        async with facing(Native()) as client:
            await begun(client)
            client.tell(*[commands.AppendAudio(loud())] * 3, commands.AppendAudio(quiet()))
            await client.log.some(events.Listening)
            assert len(client.log.of(events.AudioTranscriptDelta)) == 3
            assert len({word.id for word in client.log.of(events.AudioTranscriptDelta)}) == 1
            assert len(client.log.of(events.ResponseEnded)) == 1

    played(scenario)


def test_what_the_native_server_says_late_is_a_turn_of_its_own_that_ends_too():
    async def scenario():
        async with facing(Native()) as client:
            await begun(client)
            client.tell(commands.AppendAudio(loud()), commands.AppendAudio(quiet()), commands.AppendAudio(quiet()))
            first, second = await client.log.some(events.ResponseEnded, count=2)
            assert first.id != second.id
            late = [word for word in client.log.words if word.id == second.id]
            assert [type(word) for word in late] == [events.EngineMetrics, events.AudioDelta, events.ResponseEnded]

    played(scenario)


def test_what_was_still_to_be_said_of_a_turn_that_was_cut_off_is_not_said():
    async def scenario():
        async with facing(worker := Native()) as client:
            await begun(client)
            client.tell(commands.AppendAudio(loud()))
            await client.log.some(events.AudioDelta)
            client.tell(commands.ForceListen(), commands.AppendAudio(loud()), commands.AppendAudio(quiet()))
            await client.log.some(events.Listening, count=2)
            assert worker.asked[1]["force_listen"] is True
            assert "force_listen" not in worker.asked[2]
            assert len(client.log.of(events.ResponseEnded)) == 1
            assert len(client.log.of(events.AudioDelta)) == 1

    played(scenario)


def test_a_turn_that_is_cancelled_ends_so_and_the_model_is_made_to_listen():
    async def scenario():
        async with facing(worker := Worker()) as client:
            await begun(client)
            client.tell(commands.AppendAudio(loud()))
            (sound, *_) = await client.log.some(events.AudioDelta)
            client.tell(commands.Cancel(sound.id), commands.AppendAudio(loud()))
            await client.log.some(events.Listening)
            assert client.log.ends(sound.id) == [events.ResponseEnded(sound.id, "cancelled")]
            assert worker.asked[1]["force_listen"] is True
            client.tell(commands.AppendAudio(loud()))
            await client.log.some(events.AudioDelta, count=2)

    played(scenario)


def test_a_model_that_is_to_write_only_writes_only():
    async def scenario():
        async with facing(worker := Worker()) as client:
            await begun(client, voice=None)
            client.tell(commands.AppendAudio(loud()), commands.AppendAudio(quiet()))
            await client.log.some(events.ResponseEnded)
            assert client.log.kinds() == ["DuplexStarted", "TextDelta", "ResponseEnded", "Listening"]
            assert worker.inits[0]["use_tts"] is False
            assert worker.inits[0]["config"] == {"generate_audio": False}

    played(scenario)


def test_voices_and_what_may_be_set_reach_the_worker_and_nothing_else_does():
    async def scenario():
        async with facing(worker := Worker()) as client:
            options = {"length_penalty": 1.2, "chunk_ms": 20, "mode": "turn_based"}
            await begun(client, reference_audio=loud(100), voice=Voice(reference=quiet(50)), options=options)
            (payload,) = worker.inits
            assert payload["mode"] == "full_duplex"
            assert payload["config"] == {"length_penalty": 1.2}
            assert len(floats_of(payload["voice"]["ref_audio_base64"])) == 1600
            assert len(floats_of(payload["voice"]["tts_ref_audio_base64"])) == 800

    played(scenario)


def test_pictures_go_with_the_sound_that_is_told_next():
    async def scenario():
        async with facing(worker := Worker()) as client:
            await begun(client, has_video=True)
            client.tell(
                *[commands.AppendImage(bytes([number]), max_slices=number) for number in range(1, 7)],
                commands.AppendAudio(quiet()),
                commands.AppendAudio(quiet()),
            )
            await client.log.some(events.Listening, count=2)
            assert worker.asked[0]["video_frames"] == [base64.b64encode(bytes([number])).decode() for number in range(3, 7)]
            assert worker.asked[0]["max_slice_nums"] == 6
            assert "video_frames" not in worker.asked[1]

    played(scenario)


def test_short_pieces_are_gathered_to_seconds_and_long_ones_cut():
    async def scenario():
        async with facing(worker := Worker()) as client:
            await begun(client)
            client.tell(*[commands.AppendAudio(quiet(100))] * 9)
            client.tell(commands.AppendAudio(quiet(100)), commands.AppendAudio(quiet(300)), commands.AppendAudio(quiet(2500)))
            await client.log.some(events.Listening, count=5)
            assert [len(floats_of(each["audio"])) for each in worker.asked] == [16_000, 4_800, 16_000, 16_000, 8_000]

    played(scenario)


def test_who_says_listen_is_heard_after_a_quarter_of_a_second():
    async def scenario():
        async with facing(worker := Worker()) as client:
            await begun(client)
            client.tell(commands.ForceListen(), *[commands.AppendAudio(loud(100))] * 3)
            await client.log.some(events.Listening)
            assert [len(floats_of(each["audio"])) for each in worker.asked] == [4_800]

    played(scenario)


def test_sound_at_another_rate_and_a_voice_at_another_are_what_they_should_be():
    async def scenario():
        async with facing(worker := Worker()) as client:
            await begun(client, rate_hz=48_000, voice=Voice(rate_hz=8_000))
            client.tell(*[commands.AppendAudio(loud(500, 48_000))] * 4, commands.AppendAudio(quiet(2000, 48_000)))
            await client.log.some(events.ResponseEnded)
            heard = sum(len(floats_of(each["audio"])) for each in worker.asked)
            said = sum(len(word.pcm) for word in client.log.of(events.AudioDelta)) // 2
            spoken = len(client.log.of(events.AudioTranscriptDelta))
            assert 60_000 < heard <= 64_000
            assert abs(said - 8_000 * spoken) <= 16

    played(scenario)


def test_what_is_told_before_the_session_has_begun_waits_and_more_than_that_is_not_taken():
    async def scenario():
        async with facing(worker := Worker(creates_s=0.1)) as client:
            client.tell(commands.StartDuplex(), *[commands.AppendAudio(quiet())] * 6)
            with pytest.raises(EngineOverrun):
                client.tell(commands.AppendAudio(quiet()))
            await client.log.some(events.Listening, count=6)
            assert client.log.kinds()[0] == "DuplexStarted"
            assert len(worker.asked) == 6

    played(scenario)


def test_tokens_are_counted_for_each_turn_of_the_model():
    async def scenario():
        async with facing(Worker(usage=True)) as client:
            await begun(client)
            client.tell(
                commands.AppendAudio(loud()),
                commands.AppendAudio(quiet()),
                commands.AppendAudio(loud()),
                commands.AppendAudio(loud()),
                commands.AppendAudio(quiet()),
            )
            first, second = await client.log.some(events.Usage, count=2)
            assert (first.input_tokens, first.output_tokens, first.output_audio_tokens) == (20, 10, 3)
            assert (second.input_tokens, second.output_tokens) == (30, 15)

    played(scenario)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_nobody_is_turned_away_though_a_worker_takes_a_while_to_be_ready_again(kind, options):
    sessions = 50 if kind is Worker else 5

    async def scenario():
        async with (worker := kind(recovers_s=0.3 if kind is not Worker else 0.05)).open():
            omni = engine(worker, **options)
            for number in range(sessions):
                async with conversing(omni) as client:
                    await begun(client)
                    client.tell(commands.AppendAudio(quiet()))
                    await client.log.some(events.Listening)
                    if number % 2:
                        client.tell(commands.AppendAudio(loud()))
            assert worker.sessions == sessions
            assert not worker.breaches
            assert kind is Native or worker.refused == 0
            await omni.stop()

    played(scenario)


def test_the_way_a_session_is_closed_is_the_way_that_its_worker_knows():
    async def scenario():
        async with facing(python := Worker()) as client:
            await begun(client)
        assert python.closings == [("post", python.id)]
        async with facing(worker := GatewayWorker(), protocol="worker") as client:
            await begun(client)
        assert worker.closings == [("frame", worker.id)]
        async with facing(unused := Worker()):
            pass
        assert not unused.closings

    played(scenario)
