"""How long recordings are stored, and how they are found."""

import time

import pytest

from antiphon.errors import ClientError
from antiphon.records import SessionRecord
from support.runtime.recorded_sessions import Desk

pytestmark = pytest.mark.anyio

DAY_S = 86_400


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def recorded(desk, session_id, days_ago=0.0, size_bytes=10, state="kept", created_at=None):
    ended_at = None if state == "live" else int(time.time() - days_ago * DAY_S)
    record = SessionRecord(
        id=session_id,
        tenant="ada",
        key_id=None,
        protocol="realtime",
        mode="conversation",
        model="m",
        created_at=created_at or int(time.time()),
        state=state,
        ended_at=ended_at,
        bytes=size_bytes,
    )
    if state != "live":
        folder = desk.folder / "made" / session_id
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text("{}")
        await desk.blobs.put_folder(folder, session_id)
    await desk.store.sessions.put(record)


async def left(desk):
    page = await desk.store.sessions.page(None, after=None, limit=100, order="asc")
    there = [session.id for session in page.sessions if session.state == "live" or await desk.blobs.list_files(session.id)]
    assert there == [session.id for session in page.sessions]
    return there


async def test_what_is_too_old_is_deleted_with_its_files(tmp_path):
    desk = Desk(tmp_path, days=2)
    for days in (3, 2.5, 1, 0):
        await recorded(desk, f"sess_{days}".replace(".", "-"), days)
    await desk.recordings.expire()
    assert await left(desk) == ["sess_1", "sess_0"]
    assert not (tmp_path / "kept" / "sess_3").exists()


async def test_the_oldest_go_first_when_all_are_too_much(tmp_path):
    desk = Desk(tmp_path, max_gb=1)
    for number in range(4):
        await recorded(desk, f"sess_{number}", size_bytes=400_000_000)
    await desk.recordings.expire()
    assert await left(desk) == ["sess_2", "sess_3"]


async def test_a_live_session_is_never_deleted_and_without_limits_none_is(tmp_path):
    desk = Desk(tmp_path, days=1, max_gb=0.000001)
    await recorded(desk, "sess_live", state="live", size_bytes=10**9)
    await recorded(desk, "sess_old", 400)
    await desk.recordings.expire()
    assert await left(desk) == ["sess_live"]
    endless = Desk(tmp_path / "more", days=0, max_gb=0)
    await recorded(endless, "sess_old", 4000, size_bytes=10**12)
    await endless.recordings.expire()
    assert await left(endless) == ["sess_old"]


@pytest.mark.parametrize("session_id", ["..", "../kept", "a/b", "", "sess_1\n", "x" * 101, "sess_é"])
async def test_an_id_that_could_be_a_path_is_no_id(tmp_path, session_id):
    desk = Desk(tmp_path)
    await recorded(desk, "sess_1")
    with pytest.raises(ClientError, match="not found") as refused:
        await desk.recordings.find("ada", session_id)
    assert refused.value.status == 404


async def test_only_the_files_of_a_recording_can_be_read(tmp_path):
    desk = Desk(tmp_path)
    await recorded(desk, "sess_1")
    session = await desk.recordings.find("ada", "sess_1")
    assert (await desk.recordings.file(session, "meta.json")).bytes == 2
    for name in ("../sess_1/meta.json", "/etc/passwd", "in.wav", ""):
        with pytest.raises(ClientError, match="has no file"):
            await desk.recordings.file(session, name)


async def test_a_live_session_has_no_files_yet_and_is_not_deleted(tmp_path):
    desk = Desk(tmp_path)
    await recorded(desk, "sess_1", state="live")
    with pytest.raises(ClientError, match="has not ended") as refused:
        await desk.recordings.delete("ada", "sess_1")
    assert refused.value.status == 409


async def test_a_session_that_says_for_days_that_it_is_live_has_lost_its_server(tmp_path):
    desk = Desk(tmp_path)
    await recorded(desk, "sess_1", state="live", created_at=int(time.time() - 3 * DAY_S))
    await recorded(desk, "sess_2", state="live")
    await desk.recordings.expire()
    assert [(await desk.recordings.find("ada", id)).state for id in ("sess_1", "sess_2")] == ["interrupted", "live"]
    await desk.recordings.delete("ada", "sess_1")
