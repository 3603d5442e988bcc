"""`antiphon sessions`: list, show, export, replay and delete a server's recordings."""

import asyncio
import base64
import json
import struct
import time
import wave
import zipfile

import aiohttp
import msgspec
import pytest

from antiphon.cli.common.client import ApiClient
from antiphon.cli.recordings.replay import SessionReplay
from antiphon.cli.recordings.sessions import _file_lines, _format_fact, _length_size_state
from antiphon.config.load import load
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.replay.steps import DownloadedRecording
from antiphon.server.processes.run import background_server
from antiphon.wire.http.recordings import RecordedSession
from support.cli.tones import question
from support.stores.tables import sqlite_store

SLOW_S = 0.6

MODELS = [
    {
        "name": "parrot",
        "engine": "scripted",
        "hears": [{"says": "What is a fugue?"}],
        "answers": [{"say": "You said: {input}"}],
    },
    {"name": "slow", "engine": "scripted", "answers": [{"lines": [{"wait_ms": 1000 * SLOW_S}, {"text": "At last."}]}]},
    {"name": "broken", "engine": "scripted", "answers": [{"lines": [{"failure": {"message": "It broke."}}]}]},
    {"name": "other", "engine": "scripted", "hears": [{"says": "What is a fugue?"}], "answers": [{"say": "A flight."}]},
]


def served(home, when):
    """A server with a rule for recordings."""
    home.mkdir()
    flags = {"models": MODELS, "recording.when": when, "logging.level": "error", "tools.code_interpreter.sandbox": "off"}
    config = load(flags, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config
    sqlite_store(config.home / "antiphon.sqlite3")
    return background_server(config, is_persistent=True)


@pytest.fixture
def url(tmp_path):
    """A server that records everybody."""
    with served(tmp_path / "served", "always") as address:
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
        time.sleep(0.05)  # to ask takes processor time from the server, which writes the recording meanwhile
    raise AssertionError("there is no recording")


@pytest.fixture
def talked(antiphon, sessions, url, home):
    """A conversation aloud, of one question; its id."""
    question(home / "one.wav", ms=1500)
    assert antiphon("talk", "one.wav", "--fast", "--model", "parrot", "--url", url).code == 0
    return newest(sessions)


@pytest.mark.parametrize("verb", [("talk", "--dialect", "ga"), ("talk", "--dialect", "beta"), ("duplex", "--chunk-ms", "100")])
def test_who_asks_for_a_recording_is_told_where_it_is(antiphon, tmp_path, home, verb):
    question(home / "one.wav", ms=1500)
    with served(tmp_path / "asks", "consent") as url:
        talked = [verb[0], "one.wav", *verb[1:], "--fast", "--model", "parrot", "--url", url]
        assert "sessions show" not in antiphon(*talked).err
        assert antiphon("sessions", "list", "--json", "--url", url).json == []
        result = antiphon(*talked, "--record")
        assert result.code == 0
        command = result.err.splitlines()[-1].removeprefix("antiphon: recorded; `antiphon ").removesuffix("` shows it")
        newest(lambda *arguments: antiphon("sessions", *arguments, "--url", url))
        assert "You said: What is a fugue?" in antiphon(*command.split()).out


def test_who_asks_in_vain_for_a_recording_is_told_so_also_where_the_session_fails(antiphon, tmp_path, home):
    question(home / "one.wav", ms=1500)
    with served(tmp_path / "never", "never") as url:
        result = antiphon("talk", "one.wav", "--fast", "--model", "broken", "--record", "--url", url)
    assert (result.code, result.err.splitlines()[0]) == (
        1,
        "antiphon: not recorded: the server's `recording.when`, or the rule of your key, does not allow it",
    )


@pytest.mark.parametrize("verb", ["talk", "duplex"])
def test_a_server_that_would_forget_the_recording_is_not_started_for_it(antiphon, home, free_port, verb):
    question(home / "one.wav", ms=1500)
    (home / "antiphon.toml").write_text(f"[server]\nport = {free_port}\n")
    result = antiphon(verb, "one.wav", "--record")
    assert (result.code, "start it with `antiphon serve`" in result.err) == (1, True)


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
    assert list(_file_lines(files)) == ["in.wav (44 bytes)", "frames/ (2, 42 bytes)"]


def test_sizes_and_lengths_are_shown_in_units_for_people():
    assert list(_file_lines([{"name": "meta.json", "bytes": 4096}, {"name": "mix.wav", "bytes": 262_953}])) == [
        "meta.json (4.1 kB)",
        "mix.wav (0.3 MB)",
    ]
    assert (_format_fact("duration_ms", 3314), _format_fact("bytes", 262_953)) == ("3.3 s", "0.3 MB")


@pytest.mark.parametrize(
    ("status", "size_bytes", "truncated", "told"),
    [
        ("kept", 3_000_000, None, ("2.0 s", "3.0 MB", "kept")),
        ("kept", 3_000_000, "the disk is full", ("2.0 s", "3.0 MB", "kept, cut short")),
        ("interrupted", 0, "deleted before it could be kept", ("2.0 s", "0.0 MB", "interrupted, no files")),
        ("live", 0, None, ("-", "-", "live")),
    ],
)
def test_a_list_says_in_few_words_what_is_left_of_a_session(status, size_bytes, truncated, told):
    session = RecordedSession(
        id="sess_1",
        protocol="realtime",
        mode="ga",
        model="parrot",
        status=status,
        created_at=0,
        ended_at=None,
        duration_ms=2000,
        reason=None,
        bytes=size_bytes,
        truncated=truncated,
        tenant="default",
        key_id=None,
    )
    assert _length_size_state(session) == told


def test_it_is_saved_with_a_transcript_and_both_sides_on_one_clock(talked, sessions, home):
    result = sessions("export", talked, "-o", "session.zip")
    assert result.out == f"{home / 'session.zip'}\n"
    with zipfile.ZipFile(home / "session.zip") as archive:
        names = set(archive.namelist())
        assert {"meta.json", "events.jsonl", "in.wav", "out.wav", "mix.wav", "transcript.md", "subtitles.vtt", "subtitles.srt"} <= names
        assert "Person**: What is a fugue?" in archive.read("transcript.md").decode()
        with archive.open("mix.wav") as file, wave.open(file) as mix:
            assert (mix.getnchannels(), mix.getframerate()) == (2, 24_000)
            assert mix.getnframes() >= 24_000 * 1.5
    assert sessions("export", talked, "-o", "session.zip").code == 2
    assert sessions("export", talked).out == f"{home / talked}\n"
    assert (home / talked / "in.wav").read_bytes()[:4] == b"RIFF"


def spoken_words(path, kind):
    """The subtitles in a file or a film: when each begins, and its text."""
    av = pytest.importorskip("av")
    with av.open(str(path), format=kind) as file:
        track = file.streams.subtitles[0]
        return [
            (float(one.pts * one.time_base), text)
            for one in file.demux(track)
            if (text := bytes(one)[2 * (kind is None) :].decode().strip())
        ]


def test_subtitles_and_a_film_show_who_says_what_when(talked, sessions, home):
    av = pytest.importorskip("av")
    assert sessions("export", talked, "-o", "saved").code == 0
    (film,) = (home / "saved").glob("film.*")
    voices = [(at_s, text.partition(">")) for at_s, text in spoken_words(home / "saved" / "subtitles.vtt", "webvtt")]
    assert [(voice, text) for _, (voice, _, text) in voices] == [
        ("<v Person", "What is a fugue?"),
        ("<v Model", "You said: What is a fugue?"),
    ]
    captions = spoken_words(home / "saved" / "subtitles.srt", "srt")
    assert captions[0] == (voices[0][0], "Person: What is a fugue?")
    assert any("Model: You said: What is a fugue?" in text for _, text in captions)
    assert spoken_words(film, None) == [(pytest.approx(at_s, abs=0.001), text) for at_s, text in captions]
    with av.open(str(film)) as file, wave.open(str(home / "saved" / "mix.wav")) as mix:
        assert [stream.type for stream in file.streams] == ["video", "audio", "subtitle"]
        assert file.duration / 1e6 >= mix.getnframes() / 24_000 - 0.1


def test_who_wants_no_film_gets_none(talked, sessions, home):
    assert sessions("export", talked, "-o", "saved", "--no-film").code == 0
    assert (home / "saved" / "subtitles.vtt").exists() and not list((home / "saved").glob("film.*"))


def test_sound_is_saved_as_flac_where_that_is_wanted(talked, sessions, home):
    soundfile = pytest.importorskip("soundfile")
    sessions("export", talked, "-o", "plain")
    assert sessions("export", talked, "-o", "small", "--flac").code == 0
    for name in ("in", "out", "mix"):
        with wave.open(str(home / "plain" / f"{name}.wav")) as file:
            plain = file.readframes(file.getnframes())
        samples, rate_hz = soundfile.read(home / "small" / f"{name}.flac", dtype="int16")
        assert (samples.tobytes(), rate_hz) == (plain, 24_000)
    assert not list((home / "small").glob("*.wav"))


def test_a_place_that_can_not_be_written_is_told(talked, sessions, home):
    (home / "file").write_text("in the way")
    result = sessions("export", talked, "-o", "file/session.zip")
    assert result.code == 2 and "can't be written" in result.err and "Errno" not in result.err
    assert sessions("export", talked, "-o", "new/session.zip").code == 0 and (home / "new" / "session.zip").exists()


def test_a_recording_of_which_nothing_was_kept_is_shown_and_neither_saved_nor_said_again(talked, sessions, tmp_path):
    (folder,) = tmp_path.rglob(f"recordings/{talked}")
    for file in folder.iterdir():
        file.unlink()
    assert "model" in sessions("show", talked).out
    for verb in ("export", "replay"):
        result = sessions(verb, talked)
        assert result.code == 1 and "has no files of" in result.err


def test_said_again_to_the_same_model_the_answers_are_the_same(talked, sessions):
    told = sessions("replay", talked, "--fast", "--json").json
    (turn,) = told["turns"]
    assert turn["same"] and turn["asked"] == "What is a fugue?" and turn["word_errors"] == 0
    assert turn["replayed"]["text"] == "You said: What is a fugue?" and turn["replayed"]["reason"] == "completed"
    assert turn["replayed"]["sound_ms"] == turn["recorded"]["sound_ms"] > 0
    assert turn["replayed"]["begins_ms"] <= turn["replayed"]["first_audio_ms"]
    assert told["summary"]["wer"] == 0 and told["summary"]["unanswered"] == {"recorded": 0, "replayed": 0}
    shown = sessions("replay", talked, "--fast").out.splitlines()
    assert shown[0].split() == ["TURN", "BEGINS", "TEXT", "SOUND", "LENGTH"] and all(len(line) <= 80 for line in shown)
    assert shown[-1] == "1 turn, 1 answered in the same words; word error rate 0.0 % (0 of 6 words)"


def test_said_again_to_another_model_they_are_side_by_side(talked, sessions):
    result = sessions("replay", talked, "--fast", "--model", "other")
    assert "You said: What is" in result.out and "A flight." in result.out
    assert "5 of 6 words differ" in result.out and "word error rate 83.3 % (5 of 6 words)" in result.out


def test_a_model_that_the_server_lacks_is_not_replaced_by_another(url, sessions):
    asyncio.run(asked_in_chat(url))
    session_id = newest(sessions)
    result = sessions("replay", session_id, "--fast", "--model", "absent")
    assert (result.code, result.out) == (2, "")
    assert f"The server at {url} has no model 'absent'; it has 'parrot'," in result.err
    (turn, _) = sessions("replay", session_id, "--fast", "--model", "other", "--json").json["turns"]
    assert turn["replayed"]["text"] == "A flight."


async def asked_by_a_client_that_names_the_model_again(url):
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{url}/v1/realtime?model=parrot") as socket:

        async def until(kind):
            while (event := json.loads((await socket.receive(20)).data))["type"] != kind:
                pass
            return event

        created = await until("session.created")
        update = {"type": "realtime", "model": "parrot", "output_modalities": ["text"]}
        await socket.send_json({"type": "session.update", "session": update})
        await until("session.updated")
        content = [{"type": "input_text", "text": "One"}]
        await socket.send_json({"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}})
        await socket.send_json({"type": "response.create"})
        await until("response.done")
    return created["session"]["id"]


def test_settings_that_name_the_recorded_model_hold_for_the_other_too(url, sessions):
    asyncio.run(asked_by_a_client_that_names_the_model_again(url))
    (turn,) = sessions("replay", newest(sessions), "--fast", "--model", "other", "--json").json["turns"]
    assert turn["replayed"]["text"] == "A flight."
    assert turn["replayed"]["sound_ms"] == 0  # it was asked for text


def test_at_the_pace_of_then_it_takes_as_long_and_is_recorded_too(talked, sessions):
    result = sessions("replay", talked, "--record", "--json")
    assert result.code == 0, result.err
    assert result.json["turns"][0]["same"] and "takes as long as the session did" in result.err
    again = newest(sessions, [talked])
    then, now = (sessions("show", one, "--json").json for one in (talked, again))
    assert [turn["text"] for turn in now["turns"]] == [turn["text"] for turn in then["turns"]]


def test_a_chat_in_minicpmos_protocol_is_recorded_and_said_again(url, sessions):
    session_id = asyncio.run(asked_in_chat(url))
    assert newest(sessions) == session_id
    turns = sessions("show", session_id, "--json").json["turns"]
    assert [turn["text"] for turn in turns] == ["One", "You said: One", "Two", "You said: Two"]
    again = sessions("replay", session_id, "--fast", "--json").json["turns"]
    assert [(turn["asked"], turn["same"]) for turn in again] == [("One", True), ("Two", True)]


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
    (turn,) = sessions("replay", session_id, "--json").json["turns"]
    assert turn["same"] and turn["replayed"]["text"] == "You said: What is a fugue?"
    assert turn["speech_s"] is not None
    assert turn["replayed"]["begins_ms"] >= 0 and turn["replayed"]["first_audio_ms"] is not None
    sessions("export", session_id, "-o", "duplex")
    transcript = (home / "duplex" / "transcript.md").read_text()
    assert "Person**: What is a fugue?\n" in transcript and "spoke for" not in transcript
    assert [(turn["who"], turn["text"]) for turn in sessions("show", session_id, "--json").json["turns"]] == [
        ("person", "What is a fugue?"),
        ("model", "You said: What is a fugue?"),
    ]
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


def recording(lines):
    """A recording of these lines, as it is downloaded."""
    told = {"id": "sess_1", "tenant": "", "key_id": None, "protocol": "realtime", "mode": "conversation", "model": "m", "created_at": 1}
    events = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    return DownloadedRecording({"meta.json": msgspec.json.encode(told), "events.jsonl": events})


def test_what_does_not_come_again_is_waited_for_once(url):
    update = {"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}}
    done = {"type": "response.done", "response": {"id": "resp_1", "status": "completed"}}
    lines = [EventLine(1, 0.0, "out", {"type": "session.created"}), EventLine(2, 0.0, "out", done)]
    lines += [EventLine(seq, 0.0, "in", update) for seq in range(3, 13)]
    recorded = recording(lines)
    patience_s = 0.5
    began_s = time.monotonic()
    (turn,) = asyncio.run(
        SessionReplay(recorded, is_fast=True, idle_timeout_s=patience_s).run(
            ApiClient(url), recorded.session_path("parrot", is_recorded=False)
        )
    )
    assert turn.replayed is None
    assert time.monotonic() - began_s < 5 * patience_s  # of ten that it might be


def test_a_replay_waits_for_the_answer_to_a_truncation_at_its_end(url):
    """The client stopped the playback, and did nothing more."""
    ask = {"type": "response.create"}
    done = {"type": "response.done", "response": {"id": "resp_1", "status": "completed"}}
    added = {"type": "conversation.item.added", "item": {"id": "item_1", "role": "assistant"}}
    audio = {"type": "response.output_audio.delta", "response_id": "resp_1", "item_id": "item_1", "delta": "AAAA" * 8000}
    cut = {"item_id": "item_1", "content_index": 0, "audio_end_ms": 20}
    events = [
        ("out", {"type": "session.created"}),
        ("in", ask),
        *(("out", each) for each in (added, audio, done)),
        ("in", {"type": "conversation.item.truncate", **cut}),
        ("out", {"type": "conversation.item.truncated", **cut}),
    ]
    recorded = recording([EventLine(seq, 0.0, *event) for seq, event in enumerate(events, 1)])
    for _ in range(3):
        replay = SessionReplay(recorded, is_fast=True)
        turns = asyncio.run(replay.run(ApiClient(url), recorded.session_path("parrot", is_recorded=False)))
        assert [turn.replayed.interrupted for turn in turns] == [turn.recorded.interrupted for turn in turns] == [True]


def test_what_had_to_wait_keeps_its_pace_after(url):
    def asked(at_s):
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
        yield EventLine(0, at_s, "in", {"type": "conversation.item.create", "item": item})
        yield EventLine(0, at_s, "in", {"type": "response.create", "response": {"output_modalities": ["text"]}})

    done = {"type": "response.done", "response": {"id": "resp_1", "status": "completed"}}
    lines = [EventLine(0, 0.0, "out", {"type": "session.created"}), *asked(0.0), EventLine(0, 0.1, "out", done), *asked(0.2), *asked(0.5)]
    recorded = recording(lines)
    replay = SessionReplay(recorded, is_fast=False)
    asyncio.run(replay.run(ApiClient(url), recorded.session_path("slow", is_recorded=False)))
    at_s = [line.at_s for line in replay.lines if line.event["type"] == "response.create"]
    assert at_s[1] > SLOW_S
    assert at_s[2] - at_s[1] > 0.25, "as recorded, and not sooner to catch up"
