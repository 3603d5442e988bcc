"""Recordings of sessions: complete, in order, only with consent; and what remains after a failure."""

import asyncio
import base64
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.audio import decode_ulaw
from antiphon.engine_api.history import ImagePart, Message, SpeechPart, TextPart
from antiphon.records import KeyRecord
from antiphon.runtime.recording import writer
from antiphon.runtime.recording.recorder import should_record
from antiphon.runtime.recording.spool import SpoolLock, adopt_abandoned
from antiphon.wire.minicpmo.client_events import ChatAppend, DuplexAppend, Frame, SessionInit
from antiphon.wire.minicpmo.media import to_floats
from antiphon.wire.minicpmo.server_events import OutputDelta, SessionCreated
from antiphon.wire.realtime.session import PcmFormat, PcmuFormat
from support.programs import forks
from support.runtime.recorded_sessions import Desk, created, heard, spoken

pytestmark = pytest.mark.anyio

JPEG = b"\xff\xd8\xff\xe0picture"


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_what_was_said_is_kept_in_its_order_and_its_sound_can_be_played(tmp_path):
    async with Desk(tmp_path).open() as desk:
        tap = desk.tap()
        tap.on_server_event(created("sess_1"))
        for number in range(3):
            tap.on_client_event(heard(bytes([number, 0]) * 480))
            tap.on_server_event(spoken(bytes([0, number]) * 240))
        tap.end("left")
        record = await desk.settled("sess_1")
        assert (record.tenant, record.key_id, record.reason, record.truncated) == ("ada", "key_1", "left", None)
        lines = await desk.lines("sess_1")
        assert [line["seq"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
        assert [line["direction"] for line in lines] == ["out", "in", "out", "in", "out", "in", "out"]
        assert lines[3]["event"] == {
            "type": "input_audio_buffer.append",
            "audio": {"$media": "in.wav", "offset": 960, "bytes": 960, "form": "pcm"},
        }
        assert await desk.sound("sess_1", "in.wav") == (24_000, b"".join(bytes([number, 0]) * 480 for number in range(3)))
        assert await desk.sound("sess_1", "out.wav") == (24_000, b"".join(bytes([0, number]) * 240 for number in range(3)))
        assert record.bytes == sum(file.bytes for file in await desk.blobs.list_files("sess_1"))
        assert desk.metrics.recordings == {"kept": 1}
    assert list((tmp_path / "spool").iterdir()) == []


async def test_a_session_is_listed_while_it_is_recorded(tmp_path):
    async with Desk(tmp_path).open() as desk:
        tap = desk.tap()
        tap.on_server_event(created("sess_1"))
        assert (await desk.settled("sess_1", "live")).ended_at is None
        tap.end("left")
        await desk.settled("sess_1")


async def test_a_session_that_ends_while_its_beginning_is_stored_has_ended(tmp_path):
    desk = Desk(tmp_path)
    put, may_begin = desk.store.sessions.put, asyncio.Event()

    async def put_late(record):
        if record.state == "live":
            await may_begin.wait()
        await put(record)

    desk.store.sessions.put = put_late
    async with desk.open():
        tap = desk.tap()
        tap.on_server_event(created("sess_1"))
        tap.end("left")
        async with asyncio.timeout(60):
            while not desk.recorder.pending.bytes:  # noqa: ASYNC110 - a thread sets no event
                await asyncio.sleep(0.01)
        await desk.recorder.retry_pending()
        may_begin.set()
        await desk.settled("sess_1")
    assert (await desk.store.sessions.get(None, "sess_1")).state == "kept"


async def test_a_session_that_never_began_leaves_nothing(tmp_path):
    async with Desk(tmp_path).open() as desk:
        tap = desk.tap()
        tap.on_client_event(heard(bytes(2)))
        tap.end("failed")
    assert (await desk.store.sessions.page(None, after=None, limit=1, order="asc")).sessions == ()
    assert not (tmp_path / "kept").exists()


async def test_sound_of_the_telephone_is_kept_as_samples_and_each_rate_has_its_file(tmp_path):
    async with Desk(tmp_path).open() as desk:
        tap = desk.tap()
        tap.on_server_event(created("sess_1", heard=PcmuFormat()))
        tap.on_client_event(heard(b"\x00\x7f\xff"))
        tap.on_server_event(created("sess_1", heard=PcmFormat()))
        tap.on_client_event(heard(bytes(4)))
        tap.end("left")
        await desk.settled("sess_1")
        assert await desk.sound("sess_1", "in.wav") == (8_000, decode_ulaw(b"\x00\x7f\xff"))
        assert await desk.sound("sess_1", "in-2.wav") == (24_000, bytes(4))


async def test_a_session_of_minicpmo_is_kept_with_what_was_seen_and_the_voice_that_was_asked_for(tmp_path):
    async with Desk(tmp_path).open() as desk:
        tap = desk.tap(protocol="minicpmo", mode="video")
        tap.on_client_event(SessionInit(instructions="Be brief.", reference=bytes(8)))
        tap.on_server_event(SessionCreated(session_id="sess_1", mode="full_duplex", metrics={}))
        tap.on_client_event(DuplexAppend(pcm=b"\x01\x00" * 4, frames=(Frame(JPEG, 2),), force_listen=True))
        tap.on_server_event(
            OutputDelta(kind="audio", session_id="sess_1", response_id="resp_1", audio=to_floats(b"\x02\x00" * 3), metrics={})
        )
        tap.end("user_stop")
        await desk.settled("sess_1")
        init, _created, said, told = [line["event"] for line in await desk.lines("sess_1")]
        assert init["payload"]["system_prompt"] == "Be brief."
        assert init["payload"]["voice"]["ref_audio_base64"] == {"$media": "asides/000001.wav", "offset": 0, "bytes": 8, "form": "float32"}
        assert said["input"] == {
            "audio": {"$media": "in.wav", "offset": 0, "bytes": 8, "form": "float32"},
            "video_frames": [{"$media": "frames/000001.jpg", "bytes": len(JPEG), "form": "jpeg"}],
            "max_slice_nums": [2],
            "force_listen": True,
        }
        assert told["audio"] == {"$media": "out.wav", "offset": 0, "bytes": 6, "form": "float32"}
        assert await desk.file("sess_1", "frames/000001.jpg") == JPEG
        assert await desk.sound("sess_1", "in.wav") == (16_000, b"\x01\x00" * 4)
        assert await desk.sound("sess_1", "out.wav") == (24_000, b"\x02\x00" * 3)
        assert await desk.sound("sess_1", "asides/000001.wav") == (16_000, bytes(8))


async def test_a_question_in_chat_is_kept_as_it_is_on_the_wire(tmp_path):
    async with Desk(tmp_path).open() as desk:
        tap = desk.tap(protocol="minicpmo", mode="chat")
        tap.on_server_event(SessionCreated(session_id="sess_1", mode="turn_based", metrics={}))
        tap.on_client_event(
            ChatAppend(messages=(Message("user", (TextPart("What is this?"), SpeechPart(bytes(4), 16_000))),), max_tokens=9)
        )
        tap.end("left")
        await desk.settled("sess_1")
        asked = (await desk.lines("sess_1"))[1]["event"]["input"]
        assert asked["messages"][0]["content"][0] == {"type": "text", "text": "What is this?"}
        said = {"$media": "asides/000001.wav", "offset": 0, "bytes": 4, "form": "float32"}
        assert asked["messages"][0]["content"][1] == {"type": "audio", "data": said}
        assert asked["generation"] == {"max_new_tokens": 9}


async def test_pictures_of_a_question_in_chat_are_kept_as_files(tmp_path):
    contents = {"jpeg": JPEG, "png": b"\x89PNG\r\n\x1a\npicture"}
    urls = [f"data:image/{form};base64,{base64.b64encode(content).decode()}" for form, content in contents.items()]
    parts = tuple(ImagePart(url=url) for url in (*urls, "https://example.org/cat.png"))
    async with Desk(tmp_path).open() as desk:
        tap = desk.tap(protocol="minicpmo", mode="chat")
        tap.on_server_event(SessionCreated(session_id="sess_1", mode="turn_based", metrics={}))
        tap.on_client_event(ChatAppend(messages=(Message("user", parts),)))
        tap.end("left")
        await desk.settled("sess_1")
        assert (await desk.lines("sess_1"))[1]["event"]["input"]["messages"][0]["content"] == [
            {"type": "image", "data": {"$media": "frames/000001.jpg", "bytes": len(JPEG), "form": "jpeg"}},
            {"type": "image", "data": {"$media": "frames/000002.png", "bytes": len(contents["png"]), "form": "png"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
        ]
        assert [await desk.file("sess_1", f"frames/{name}") for name in ("000001.jpg", "000002.png")] == list(contents.values())


async def test_ten_sessions_at_once_are_each_in_order(tmp_path):
    async with Desk(tmp_path).open() as desk:
        taps = {f"sess_{number}": desk.tap() for number in range(10)}
        for session_id, tap in taps.items():
            tap.on_server_event(created(session_id))
        for number in range(200):
            for tap in taps.values():
                tap.on_client_event(heard(number.to_bytes(2, "little") * 10))
            if number % 50 == 0:
                await asyncio.sleep(0)
        for tap in taps.values():
            tap.end("left")
        for session_id in taps:
            await desk.settled(session_id)
            lines = await desk.lines(session_id)
            assert [line["seq"] for line in lines] == list(range(1, 202))
            assert [line["event"]["audio"]["offset"] for line in lines[1:]] == list(range(0, 4000, 20))
            assert (await desk.sound(session_id, "in.wav"))[1] == b"".join(number.to_bytes(2, "little") * 10 for number in range(200))


async def test_what_waits_has_a_bound_beyond_which_the_recording_ends_and_says_so(tmp_path):
    async with Desk(tmp_path).open() as desk:
        tap = desk.tap()
        tap.on_server_event(created("sess_1"))
        piece = bytes(1 << 20)
        for _ in range(80):  # in one breath of the thread that writes
            tap.on_client_event(heard(piece))
        tap.end("left")
        record = await desk.settled("sess_1")
        assert record.truncated == writer.DISK_TOO_SLOW
        assert 0 < len((await desk.sound("sess_1", "in.wav"))[1]) < 80 << 20
        assert desk.metrics.recordings == {"truncated": 1}


async def test_a_recording_that_can_not_be_kept_is_tried_again_at_the_next_start(tmp_path):
    place = tmp_path / "kept"
    place.write_text("in the way")
    async with Desk(tmp_path).open() as desk:
        tap = desk.tap()
        tap.on_server_event(created("sess_1"))
        tap.end("left")
        async with asyncio.timeout(20):
            while not desk.metrics.recordings["upload_failed"]:  # noqa: ASYNC110 - a store sets no event
                await asyncio.sleep(0.01)
    place.unlink()
    async with Desk(tmp_path).open() as desk:
        assert (await desk.settled("sess_1")).reason == "left"
        assert len(await desk.lines("sess_1")) == 1
    assert list((tmp_path / "spool").iterdir()) == []


# A process that dies, and a disk that is full: in processes of their own

CHILD = """
import asyncio, resource, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support.runtime.recorded_sessions import Desk, created, heard, spoken

async def main():
    async with Desk(Path(sys.argv[1])).open() as desk:
        tap = desk.tap()
        tap.on_server_event(created("sess_1"))
        await desk.settled("sess_1", "live")
        SAYS

asyncio.run(main())
"""

TALKS_ON = """
        print("recording", flush=True)
        while True:
            tap.on_client_event(heard(bytes(range(256)) * 2))
            tap.on_server_event(spoken(bytes(range(255))))
            await asyncio.sleep(0.001)
"""

FILLS_THE_DISK = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        while tap.truncation_reason is None:
            tap.on_client_event(heard(bytes(4800)))
            await asyncio.sleep(0.001)
        tap.on_client_event(heard(bytes(4800)))
        other = desk.tap()
        other.on_server_event(created("sess_2"))
        tap.end("left")
        other.end("left")
        await desk.settled("sess_2")
        record = await desk.settled("sess_1")
        rate, pcm = await desk.sound("sess_1", "in.wav")
        lines = await desk.lines("sess_1")
        print(record.truncated, rate, 0 < len(pcm) <= 100_000, lines[-1]["seq"] == len(lines), flush=True)
"""


def child(tmp_path, says):
    command = [sys.executable, "-c", CHILD.replace("        SAYS", says), str(tmp_path), str(Path(__file__).parents[2])]
    return forks.Popen(command, stdout=subprocess.PIPE, text=True)


def written(tmp_path):
    return sum(path.stat().st_size for path in (tmp_path / "spool").rglob("*.wav"))


@pytest.mark.parametrize("least_bytes", [1, 40_000])
async def test_what_was_written_before_a_kill_can_be_played_and_is_listed(tmp_path, least_bytes):
    with child(tmp_path, TALKS_ON) as process:
        assert process.stdout.readline() == "recording\n"
        while written(tmp_path) < least_bytes:
            assert process.poll() is None
        process.kill()
    async with Desk(tmp_path).open() as desk:
        record = await desk.settled("sess_1", "interrupted")
        assert (record.reason, record.tenant) == ("interrupted", "ada")
        lines = await desk.lines("sess_1")
        rate, pcm = await desk.sound("sess_1", "in.wav")
        assert rate == 24_000 and len(pcm) >= 512
        # The sound is written first: a line never speaks of what is not there.
        told = [line["event"]["audio"] for line in lines if "audio" in line["event"]]
        assert all(media["offset"] + media["bytes"] <= len(pcm) for media in told)
        assert record.duration_ms == round(1000 * lines[-1]["at_s"])
        assert record.bytes == sum(file.bytes for file in await desk.blobs.list_files("sess_1"))
        assert desk.metrics.recordings == {"interrupted": 1}


async def test_what_a_loss_of_power_left_unwritten_is_cut_off_and_keeps_no_server_from_starting(tmp_path):
    with child(tmp_path, TALKS_ON) as process:
        assert process.stdout.readline() == "recording\n"
        while written(tmp_path) < 4_000:
            assert process.poll() is None
        process.kill()
    (events,) = (tmp_path / "spool").rglob("events.jsonl")
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(lines[0] + bytes(512) + b"\n" + b"".join(lines[1:]))
    async with Desk(tmp_path).open() as desk:
        record = await desk.settled("sess_1", "interrupted")
        assert [line["seq"] for line in await desk.lines("sess_1")] == [1]
        assert record.duration_ms < 1_000


async def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path):
    with child(tmp_path, FILLS_THE_DISK) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == f"{writer.DISK_ERROR} 24000 True True\n"


async def test_what_a_living_process_records_is_left_to_it(tmp_path):
    mine = SpoolLock.create(tmp_path)
    assert adopt_abandoned(tmp_path) == []
    mine.release()
    assert list(tmp_path.iterdir()) == []


# Who is recorded

A_KEY = {"id": "key_1", "hash": b"", "prefix": "", "name": "", "tenant": "ada", "scopes": (), "created_at": 1}


@pytest.mark.parametrize(
    ("when", "of_key", "asks", "wanted"),
    [
        ("never", None, True, False),
        ("consent", None, False, False),
        ("consent", None, True, True),
        ("always", None, False, True),
        ("always", "never", True, False),
        ("always", "consent", False, False),
        ("never", "consent", True, True),
        ("never", "always", False, True),
    ],
)
def test_the_rule_of_a_key_goes_before_the_servers(when, of_key, asks, wanted):
    assert should_record(when, KeyRecord(**A_KEY, record=of_key), is_requested=asks) is wanted


@pytest.mark.parametrize(("when", "asks", "wanted"), [("never", True, False), ("consent", True, True), ("consent", False, False)])
def test_without_a_key_the_servers_rule_holds(when, asks, wanted):
    assert should_record(when, None, is_requested=asks) is wanted
