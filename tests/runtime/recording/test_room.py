"""What happens to recordings where there is no room for them: the newest stay, and sessions go on."""

import asyncio
import shutil
import time

import pytest

from antiphon.config.load import load
from antiphon.runtime.recording import writer
from antiphon.runtime.recording.spool import DROPPED_FOR_AGE, DROPPED_FOR_SPACE, SpoolLimits
from antiphon.runtime.service import Service
from antiphon.stores.blobs import BlobStore
from support.runtime.recorded_sessions import Desk, created, heard

pytestmark = pytest.mark.anyio

PIECE = bytes(48_000)


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Away(Desk):
    """A recorder whose storage is unavailable until the test restores it."""

    def __init__(self, folder, room, now=time.time):
        super().__init__(folder, room=room, now=now)
        self.place = folder / "kept"
        self.place.write_text("in the way")

    def come_back(self):
        self.place.unlink()

    async def record(self, session_id, pieces=1):
        """A whole session, as far as it can be kept."""
        tap = self.tap()
        tap.on_server_event(created(session_id))
        for _ in range(pieces):
            tap.on_client_event(heard(PIECE))
        tap.end("left")
        await self.spooled(session_id)
        return tap

    async def spooled(self, session_id):
        """Wait until its end is written."""
        await self.until(lambda: any(filed.record.id == session_id for filed in self.recorder.pending.due))

    @staticmethod
    async def until(is_so):
        async with asyncio.timeout(20):
            while not is_so():  # noqa: ASYNC110 - a thread sets no event
                await asyncio.sleep(0.01)

    def waiting(self):
        return [path.parent.name for path in sorted((self.folder / "spool").rglob("events.jsonl"))]


async def test_the_oldest_that_waits_is_deleted_and_its_record_says_so(tmp_path):
    desk = Away(tmp_path, SpoolLimits(max_bytes=3 * len(PIECE)))
    async with desk.open():
        for number in range(5):
            await desk.record(f"sess_{number}")
        await desk.until(lambda: desk.metrics.recordings["dropped"] == 2)
        assert desk.waiting() == ["sess_2", "sess_3", "sess_4"]
        desk.come_back()
        for session_id in ("sess_0", "sess_1"):
            record = await desk.settled(session_id, "interrupted")
            assert (record.truncated, record.bytes, record.reason) == (DROPPED_FOR_SPACE, 0, "left")
            assert await desk.recordings.files(record) == []
        assert desk.metrics.recordings_waiting_bytes == desk.recorder.pending.bytes > 2 * len(PIECE)
        (line,) = desk.noticed  # once, not for each of them
        assert "sess_0" in line and "recording.spool_gb" in line


async def test_what_waits_is_kept_when_the_place_is_back(tmp_path):
    desk = Away(tmp_path, SpoolLimits())
    async with desk.open():
        for number in range(3):
            await desk.record(f"sess_{number}")
        await desk.until(lambda: desk.metrics.recordings["upload_failed"])
        desk.come_back()
        await desk.recorder.retry_pending()
        for number in range(3):
            assert (await desk.settled(f"sess_{number}")).reason == "left"
            assert len(await desk.lines(f"sess_{number}")) == 2
        assert desk.metrics.recordings_waiting_bytes == 0
        assert desk.metrics.recordings["kept"] == 3


async def test_a_place_that_is_away_is_asked_once_a_round_and_not_for_each_recording(tmp_path):
    desk = Away(tmp_path, SpoolLimits())
    async with desk.open():
        await desk.until(lambda: desk.rounds == 1)  # that of the start
        for number in range(5):
            await desk.record(f"sess_{number}")
        await desk.until(lambda: desk.metrics.recordings["upload_failed"])  # the first of them
        await desk.recorder.retry_pending()
    assert desk.metrics.recordings["upload_failed"] == 2


async def test_one_that_can_not_be_kept_keeps_no_other_from_being_kept(tmp_path):
    desk = Away(tmp_path, SpoolLimits())
    async with desk.open():
        await desk.record("sess_bad")
        await desk.record("sess_good")
        desk.come_back()
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "sess_bad").write_text("in the way")
        for _ in range(2):
            await desk.recorder.retry_pending()
        assert (await desk.settled("sess_good")).reason == "left"


async def test_what_is_recorded_ends_where_nothing_waits_that_could_go(tmp_path):
    desk = Away(tmp_path, SpoolLimits(max_bytes=2 * len(PIECE)))
    async with desk.open():
        tap = desk.tap()
        tap.on_server_event(created("sess_1"))
        while tap.truncation_reason is None:
            tap.on_client_event(heard(PIECE))
            await asyncio.sleep(0.05)
        assert tap.truncation_reason == writer.SPOOL_FULL
        tap.on_client_event(heard(PIECE))  # the session goes on
        tap.end("left")
        await desk.spooled("sess_1")
        desk.come_back()
        await desk.recorder.retry_pending()
        record = await desk.settled("sess_1")
        assert record.truncated == writer.SPOOL_FULL and record.bytes > 2 * len(PIECE)
        assert (await desk.sound("sess_1", "in.wav"))[1]


async def test_a_disk_with_little_left_is_left_to_others(tmp_path):
    desk = Desk(tmp_path, room=SpoolLimits(min_free_bytes=shutil.disk_usage(tmp_path).total))
    (tmp_path / "spool").mkdir()
    async with desk.open():
        tap = desk.tap()
        tap.on_server_event(created("sess_1"))
        tap.on_client_event(heard(PIECE))
        tap.end("left")
        record = await desk.settled("sess_1")
        assert (record.truncated, record.bytes) == (writer.DISK_LOW, 0)
        assert desk.metrics.recordings == {"truncated": 1}
        again = desk.tap()
        again.on_server_event(created("sess_2"))
        again.end("left")
        await desk.settled("sess_2")
        assert desk.noticed == [f"The recording of sess_1 ends before its session: {writer.DISK_LOW}."]
    assert list((tmp_path / "spool").iterdir()) == []


async def test_what_a_dead_process_left_counts_too(tmp_path):
    desk = Away(tmp_path, SpoolLimits())
    async with desk.open():
        for number in range(3):
            await desk.record(f"sess_{number}")
    smaller = Desk(tmp_path, room=SpoolLimits(max_bytes=2 * len(PIECE)))
    async with smaller.open():
        await desk.until(lambda: smaller.metrics.recordings["dropped"])
    assert desk.waiting() == ["sess_2"]


async def test_what_waits_is_deleted_when_it_is_as_old_as_what_is_kept_may_be(tmp_path):
    now = [1_000_000.0]
    desk = Away(tmp_path, SpoolLimits(max_age_s=3600), now=lambda: now[0])
    async with desk.open():
        await desk.record("sess_old")
        now[0] += 3000
        await desk.record("sess_new")
        now[0] += 900
        await desk.recorder.sweep()
        assert (await desk.settled("sess_old", "interrupted")).truncated == DROPPED_FOR_AGE
        assert desk.waiting() == ["sess_new"]


@pytest.mark.parametrize(("processes", "most_bytes"), [(1, 2_000_000_000), (4, 500_000_000)])
def test_processes_share_what_the_spool_may_take(tmp_path, processes, most_bytes):
    flags = {"recording.spool_gb": 2, "recording.free_gb": 0.5, "server.processes": processes}
    config = load(flags, None, {"HOME": str(tmp_path)}, tmp_path, system_file=tmp_path / "none.toml").config
    recorder = Service(config, lambda _line: None).recorder
    assert recorder is not None and recorder.limits == SpoolLimits(most_bytes, 500_000_000, 30 * 86_400)


class Slow(BlobStore):
    """A place that takes for ever, elsewhere."""

    is_local = False

    async def put_folder(self, folder, name):
        await asyncio.Event().wait()


async def test_a_place_that_does_not_answer_keeps_no_session_from_being_listed(tmp_path):
    desk = Desk(tmp_path, blobs=Slow)
    async with desk.open():
        for session_id in ("sess_1", "sess_2"):
            tap = desk.tap()
            tap.on_server_event(created(session_id))
            await desk.settled(session_id, "live")
            tap.end("left")
        desk.recorder.close_timeout_s = 0.1
    again = Desk(tmp_path)
    async with again.open():  # it did not keep the server from its end, and nothing is lost
        for session_id in ("sess_1", "sess_2"):
            assert (await again.settled(session_id)).reason == "left"
