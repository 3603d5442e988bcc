"""A synthesizer whose voices run in another process: its audio, and what happens when that process misbehaves."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from antiphon.errors import ApiError, ClientError
from support.programs import forks
from support.speech.running import run, started
from support.speech.synthesizers import collect_audio, is_running, tone_synthesizer, until


async def broken_off(mouth, text):
    with pytest.raises(ApiError, match="was interrupted"):
        await collect_audio(mouth, text)


def test_it_speaks_in_pieces_of_a_word_that_are_the_text(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth:
            pieces = await collect_audio(mouth, "One two, three. Four five.")
            assert [piece.text for piece in pieces] == ["One ", "two, ", "three. ", "Four ", "five."]
            assert {len(piece.pcm) for piece in pieces} == {200}

    run(scenario())


def test_a_voice_is_known_by_its_name_or_an_alias_and_others_are_refused_by_name(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth:
            assert await collect_audio(mouth, "One.", "low")
            assert await collect_audio(mouth, "One.", "alloy")
            with pytest.raises(ClientError, match="'high', 'low', and 'alloy'") as refusal:
                await collect_audio(mouth, "One.", "marin")
            assert refusal.value.param == "voice"

    run(scenario())


@pytest.mark.parametrize(("text", "reason"), [("boom", "no such word"), ("drone", "can be sent to another process"), ("hum", "too long")])
def test_what_can_not_be_said_costs_nobody_else_their_voice(tmp_path, text, reason):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth:
            pid = mouth.process.pid
            with capture_logs() as lines, pytest.raises(ApiError, match=r"^Speech synthesis failed") as failure:
                await collect_audio(mouth, text)
            # What native code says may name files.
            assert reason in str([*lines, failure.value])
            assert "no such word" not in failure.value.message
            assert len(await collect_audio(mouth, "One two.")) == 2
            assert mouth.process.pid == pid

    run(scenario())


def test_a_process_killed_mid_word_fails_what_was_being_said_and_the_next_is_said(tmp_path):
    async def scenario():
        noticed = []
        async with started(tone_synthesizer(tmp_path, notice=noticed.append)) as mouth:
            pid = mouth.process.pid
            with pytest.raises(ApiError, match="was interrupted") as fault:
                await collect_audio(mouth, "One two. This will crash now.")
            assert fault.value.status == 503
            assert len(await collect_audio(mouth, "One two.")) == 2
            assert mouth.process.pid != pid and not is_running(pid)
            assert len(noticed) == 1

    run(scenario())


def test_a_process_killed_from_without_is_replaced(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(broken_off(mouth, "wait here."))
                await until((tmp_path / "waiting").exists)
                os.kill(mouth.process.pid, signal.SIGKILL)
            assert len(await collect_audio(mouth, "One two.")) == 2

    run(scenario())


def test_a_process_that_never_answers_is_killed_and_replaced(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path, response_timeout_s=0.5)) as mouth:
            pid = mouth.process.pid
            with pytest.raises(ApiError, match="was interrupted"):
                await collect_audio(mouth, "hang")
            assert len(await collect_audio(mouth, "One two.")) == 2
            assert not is_running(pid)

    run(scenario())


def test_closing_the_iterator_stops_the_work(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth:
            async with aclosing(mouth.synthesize("One. Wait here. More.")) as speaking:
                assert (await anext(speaking)).text == "One. "
                await until((tmp_path / "waiting").exists)
            await until((tmp_path / "stopped").exists)
            assert len(await collect_audio(mouth, "One two.")) == 2

    run(scenario())


def test_a_piece_is_heard_while_the_next_is_made_which_closing_stops(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth:
            async with aclosing(mouth.synthesize("Speak slowly wait here.")) as speaking:
                assert [(await anext(speaking)).text for _ in range(2)] == ["Speak ", "slowly "]
                await until((tmp_path / "waiting").exists)
            await until((tmp_path / "stopped").exists)
            assert len(await collect_audio(mouth, "One two.")) == 2

    run(scenario())


def test_a_process_killed_between_two_pieces_fails_what_was_being_said(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth:
            async with aclosing(mouth.synthesize("Slowly slowly wait here.")) as speaking:
                assert (await anext(speaking)).text == "Slowly "
                os.kill(mouth.process.pid, signal.SIGKILL)
                with pytest.raises(ApiError, match="was interrupted"):
                    async for _ in speaking:
                        pass
            assert len(await collect_audio(mouth, "One two.")) == 2

    run(scenario())


async def said_together(folder, *texts):
    """The words of these texts in the order in which they are said, all of them asked for while another one is said."""
    async with started(tone_synthesizer(folder)) as mouth, asyncio.TaskGroup() as tasks:
        holding = tasks.create_task(collect_audio(mouth, "wait here."))
        await until((folder / "waiting").exists)
        for text in texts:
            tasks.create_task(collect_audio(mouth, text))
        await asyncio.sleep(0)  # all of them have asked
        holding.cancel()
    return (folder / "said").read_text().split()


def test_first_words_are_said_between_the_pieces_of_others(tmp_path):
    async def scenario():
        said = await said_together(tmp_path, "A1 slowly A2. A3.", "B1. B2.", "C1 slowly C2.")
        assert said[:3] == ["A1", "B1.", "C1"]
        assert [word for word in said if word[0] in "As"][:4] == ["A1", "slowly", "A2.", "A3."]

    run(scenario())


def test_a_cancelled_listener_stops_the_work(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth, asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(collect_audio(mouth, "wait here."))
            await until((tmp_path / "waiting").exists)
            listening.cancel()
            await until((tmp_path / "stopped").exists)

    run(scenario())


def test_all_who_speak_have_their_turns(tmp_path):
    async def scenario():
        ended = []

        async def one(name, text):
            await collect_audio(mouth, text)
            ended.append(name)

        async with started(tone_synthesizer(tmp_path)) as mouth, asyncio.TaskGroup() as tasks:
            tasks.create_task(one("long", "One two three. " * 200))
            tasks.create_task(one("short", "One."))
        assert ended == ["short", "long"]

    run(scenario())


def test_who_waits_for_a_first_word_goes_before_who_has_one(tmp_path):
    async def scenario():
        said = await said_together(tmp_path, "A1. A2.", "B1. B2.", "C1. C2.")
        assert said == ["A1.", "B1.", "C1.", "A2.", "B2.", "C2."]

    run(scenario())


def test_more_than_can_be_said_is_refused(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path, max_pending=1)) as mouth, asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(collect_audio(mouth, "wait here."))
            await until((tmp_path / "waiting").exists)
            with pytest.raises(ApiError, match="overloaded") as refusal:
                await collect_audio(mouth, "One.")
            assert refusal.value.code == "server_is_overloaded"
            waiting.cancel()

    run(scenario())


@pytest.mark.parametrize(
    ("flaw", "said"), [("missing", "There is no tone"), ("dead", "before it was ready"), ("silent", "not ready in 2 s")]
)
def test_a_voice_that_can_not_speak_says_so_at_the_start(tmp_path, flaw, said):
    async def scenario():
        (tmp_path / flaw).touch()
        mouth = tone_synthesizer(tmp_path, start_timeout_s=2)
        with pytest.raises(ApiError, match=said):
            await mouth.start()
        await mouth.stop()

    run(scenario())


def test_a_voice_that_can_not_be_replaced_is_tried_again(tmp_path):
    async def scenario():
        noticed = []
        async with started(tone_synthesizer(tmp_path, notice=noticed.append)) as mouth:
            (tmp_path / "missing").touch()
            os.kill(mouth.process.pid, signal.SIGKILL)
            await until(lambda: any("There is no tone" in line for line in noticed))
            (tmp_path / "missing").unlink()
            assert len(await collect_audio(mouth, "One two.")) == 2

    run(scenario())


def test_it_says_nothing_before_it_is_started_or_after_it_is_stopped(tmp_path):
    async def scenario():
        mouth = tone_synthesizer(tmp_path)
        with pytest.raises(ApiError, match="not been started"):
            await collect_audio(mouth, "One.")
        async with started(mouth):
            pid = mouth.process.pid
        await mouth.stop()
        assert not is_running(pid)
        with pytest.raises(ApiError, match="not been started"):
            await collect_audio(mouth, "One.")

    run(scenario())


SERVER = """
import asyncio, pathlib, sys
from support.speech.synthesizers import tone_synthesizer
async def main():
    mouth = tone_synthesizer(pathlib.Path(sys.argv[1]))
    await mouth.start()
    print(mouth.process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_the_process_ends_when_the_server_is_killed(tmp_path):
    command = [sys.executable, "-c", SERVER, str(tmp_path)]
    folder = str(Path(__file__).parents[2])
    with forks.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": folder}) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert is_running(pid)
        server.kill()

    async def scenario():
        await until(lambda: not is_running(pid))

    run(scenario())
