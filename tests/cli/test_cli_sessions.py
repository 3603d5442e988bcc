"""`antiphon sessions`: what a server has recorded, seen, saved, said again and deleted from a terminal."""

import asyncio
import base64
import json
import struct
import time
import wave
import zipfile

import aiohttp
import pytest
from tones import question

from antiphon.cli.sessions import _files
from antiphon.config import load
from antiphon.server.run import background

MODELS = [
    {
        "name": "parrot",
        "engine": "scripted",
        "hears": [{"says": "What is a fugue?"}],
        "answers": [{"say": "You said: {input}"}],
    },
    {"name": "other", "engine": "scripted", "hears": [{"says": "What is a fugue?"}], "answers": [{"say": "A flight."}]},
]


@pytest.fixture
def url(tmp_path):
    """A server that records everybody."""
    home = tmp_path / "served"
    home.mkdir()
    flags = {"models": MODELS, "recording.when": "always", "logging.level": "error"}
    with background(load(flags, None, {"HOME": str(home)}, home, etc=home / "none.toml").config, is_lasting=True) as address:
        yield address


@pytest.fixture
def sessions(antiphon, url):
    return lambda verb, *arguments: antiphon("sessions", verb, *arguments, "--url", url)


def newest(sessions, but=()):
    """The id of the newest recording that has ended and is none of these."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        listed = sessions("list", "--limit", "1", "--json").json
        if listed and listed[0]["status"] == "kept" and listed[0]["id"] not in but:
            return listed[0]["id"]
    raise AssertionError("there is no recording")


@pytest.fixture
def talked(antiphon, sessions, url, home):
    """A conversation aloud, of one question; its id."""
    question(home / "one.wav", ms=1500)
    assert antiphon("talk", "one.wav", "--fast", "--model", "parrot", "--url", url).code == 0
    return newest(sessions)


async def asked_in_chat(url):
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{url}/v1/realtime", params={"mode": "chat", "model": "parrot"}) as socket:

        async def until(kind):
            while (event := json.loads((await socket.receive(20)).data))["type"] != kind:
                pass
            return event

        await until("session.queue_done")
        await socket.send_json({"type": "session.init", "payload": {"system_prompt": "Be brief."}})
        session_id = (await until("session.created"))["session_id"]
        for text in ("One", "Two"):
            await socket.send_json({"type": "input.append", "input": {"messages": [{"role": "user", "content": text}]}})
            await until("response.done")
        await socket.send_json({"type": "session.close", "reason": "user_stop"})
        await until("session.closed")
    return session_id


def test_a_conversation_is_listed_and_shown_with_who_said_what(talked, sessions):
    listed = sessions("list").out
    assert talked[:13] in listed and "realtime" in listed and "parrot" in listed and "kept" in listed
    shown = sessions("show", talked[:20]).out
    assert "What is a fugue?" in shown and "You said: What is a fugue?" in shown and "in.wav" in shown
    turns = sessions("show", talked, "--json").json["turns"]
    assert [(turn["who"], turn["text"]) for turn in turns] == [("person", "What is a fugue?"), ("model", "You said: What is a fugue?")]


def test_files_in_a_folder_are_one_line():
    files = [{"name": name, "bytes": size} for name, size in (("frames/000001.jpg", 40), ("frames/000002.jpg", 2), ("in.wav", 44))]
    assert list(_files(files)) == ["in.wav (44 bytes)", "frames/ (2, 42 bytes)"]


def test_it_is_saved_with_a_transcript_and_both_sides_on_one_clock(talked, sessions, home):
    result = sessions("export", talked, "-o", "session.zip")
    assert result.out == f"{home / 'session.zip'}\n"
    with zipfile.ZipFile(home / "session.zip") as archive:
        names = set(archive.namelist())
        assert {"meta.json", "events.jsonl", "in.wav", "out.wav", "mix.wav", "transcript.md"} <= names
        assert "Person**: What is a fugue?" in archive.read("transcript.md").decode()
        with archive.open("mix.wav") as file, wave.open(file) as mix:
            assert (mix.getnchannels(), mix.getframerate()) == (2, 24_000)
            assert mix.getnframes() >= 24_000 * 1.5
    assert sessions("export", talked, "-o", "session.zip").code == 2
    assert sessions("export", talked).out == f"{home / talked}\n"
    assert (home / talked / "in.wav").read_bytes()[:4] == b"RIFF"


def test_said_again_to_the_same_model_the_answers_are_the_same(talked, sessions):
    (pair,) = sessions("replay", talked, "--fast", "--json").json
    assert pair["same"] and pair["replayed"]["text"] == "You said: What is a fugue?" and pair["replayed"]["reason"] == "completed"
    assert sessions("replay", talked, "--fast").out.endswith("1 answers, 1 of them the same\n")


def test_said_again_to_another_model_they_are_side_by_side(talked, sessions):
    result = sessions("replay", talked, "--fast", "--model", "other")
    assert "You said: What is a fugue?" in result.out and "A flight." in result.out
    assert result.out.endswith("1 answers, 0 of them the same\n")


def test_at_the_pace_of_then_it_takes_as_long_and_is_recorded_too(talked, sessions):
    (pair,) = sessions("replay", talked, "--record", "--json").json
    assert pair["same"]
    again = newest(sessions, [talked])
    then, now = (sessions("show", one, "--json").json for one in (talked, again))
    assert [turn["text"] for turn in now["turns"]] == [turn["text"] for turn in then["turns"]]


def test_a_chat_in_minicpmos_protocol_is_recorded_and_said_again(url, sessions):
    session_id = asyncio.run(asked_in_chat(url))
    assert newest(sessions) == session_id
    turns = sessions("show", session_id, "--json").json["turns"]
    assert [turn["text"] for turn in turns] == ["One", "You said: One", "Two", "You said: Two"]
    assert [pair["same"] for pair in sessions("replay", session_id, "--fast", "--json").json] == [True, True]


async def spoken_in_full_duplex(url):
    loud = base64.b64encode(struct.pack("<3200f", *[0.3 if at // 80 % 2 else -0.3 for at in range(3200)])).decode()
    quiet = base64.b64encode(bytes(4 * 3200)).decode()
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/v1/realtime", params={"mode": "audio", "model": "parrot"}) as socket,
    ):

        async def until(is_it):
            while not is_it(event := json.loads((await socket.receive(20)).data)):
                pass
            return event

        await until(lambda event: event["type"] == "session.queue_done")
        await socket.send_json({"type": "session.init", "payload": {}})
        session_id = (await until(lambda event: event["type"] == "session.created"))["session_id"]
        for piece in [*[loud] * 5, *[quiet] * 12]:
            await socket.send_json({"type": "input.append", "input": {"audio": piece}})
        await until(lambda event: event.get("end_of_turn"))
        await socket.send_json({"type": "session.close", "reason": "user_stop"})
        await until(lambda event: event["type"] == "session.closed")
    return session_id


def test_full_duplex_is_recorded_and_said_again_by_the_clock(url, sessions, home):
    session_id = asyncio.run(spoken_in_full_duplex(url))
    assert newest(sessions) == session_id
    assert sessions("replay", session_id, "--fast").code == 2
    (pair,) = sessions("replay", session_id, "--json").json
    assert pair["same"] and pair["replayed"]["text"] == "You said: What is a fugue?"
    sessions("export", session_id, "-o", "duplex")
    with wave.open(str(home / "duplex" / "in.wav")) as file:
        assert (file.getframerate(), file.getnframes()) == (16_000, 17 * 3200)


def test_what_is_deleted_is_gone(talked, sessions):
    assert sessions("rm", talked).out == f"{talked} is deleted\n"
    assert talked[:13] not in sessions("list").out
    missing = sessions("show", talked)
    assert missing.code == 1 and "not found" in missing.err


def test_without_a_server_there_is_nothing_to_see(antiphon, free_port, home):
    (home / "antiphon.toml").write_text(f"[server]\nport = {free_port}\n")
    result = antiphon("sessions", "list")
    assert result.code == 1 and "antiphon serve" in result.err


@pytest.mark.parametrize("arguments", [("list", "--limit", "0"), ("rm",)])
def test_what_makes_no_sense_is_refused(sessions, arguments):
    assert sessions(*arguments).code == 2
