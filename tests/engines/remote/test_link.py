"""One end of a link to a worker: what waits for a slow reader, and how silence ends it."""

import asyncio

from antiphon.engine_api import commands
from antiphon.engines.remote.link import PIECE_BYTES, SILENT_BEATS, WAITING_LIMIT_BYTES, End
from antiphon.wire.codec.length_prefix import Frames
from antiphon.wire.internal.worker_link import Beat, Leave, Told, framed, from_worker, to_worker


class Slow:
    """What carries a link, to a reader that takes so many pieces before it must be asked again."""

    def __init__(self, end, takes=1_000_000):
        self._end = end
        self.takes = takes
        self.pieces, self.reason = [], None

    def write(self, piece):
        self.pieces.append(piece)
        self.takes -= 1
        if self.takes == 0:
            self._end.pause()

    def close(self, reason):
        self.reason = reason


def one_end(scenario, takes=1_000_000):
    async def play():
        lost, held = [], []
        end = End(from_worker, lambda _frame: None, lost.append, held.append)
        pipe = Slow(end, takes)
        end.connect(pipe)
        scenario(end, pipe)
        await asyncio.sleep(0)
        return lost, held, pipe

    return asyncio.run(play())


def hear(size):
    return Told(1, (commands.Hear(bytes(size)),))


def test_a_frame_leaves_at_once_and_in_one_piece():
    def scenario(end, pipe):
        end.send(Leave(1))
        assert pipe.pieces == [framed(Leave(1))]

    one_end(scenario)


def test_what_a_slow_reader_does_not_take_waits_in_its_order_and_is_cut_to_pieces():
    frames = [hear(PIECE_BYTES * 3), Leave(1), Leave(2)]

    def scenario(end, pipe):
        for frame in frames:
            end.send(frame)
        assert len(pipe.pieces) == 1
        assert end.waiting_bytes > PIECE_BYTES * 2
        for _ in range(6):
            pipe.takes = 1
            end.resume()
        assert list(Frames(to_worker).take(b"".join(pipe.pieces))) == frames
        assert max(map(len, pipe.pieces)) == PIECE_BYTES
        assert end.waiting_bytes == 0

    _, held, _ = one_end(scenario, takes=1)
    assert held[0] is True


def test_whoever_writes_is_told_when_the_reader_is_behind_and_when_it_has_caught_up():
    def scenario(end, pipe):
        end.send(Leave(1))
        end.send(Leave(2))
        pipe.takes = 100
        end.resume()

    _, held, _ = one_end(scenario, takes=1)
    assert held == [True, False]


def test_a_reader_that_lets_too_much_wait_is_dropped():
    def scenario(end, _pipe):
        for _ in range(WAITING_LIMIT_BYTES // (16 << 20) + 1):
            end.send(hear(16 << 20))
        assert end.is_over

    lost, _, pipe = one_end(scenario, takes=1)
    assert lost == [pipe.reason] == ["too much waits to be read"]


def test_an_end_that_hears_nothing_for_some_beats_drops_the_other():
    def scenario(end, pipe):
        for _ in range(SILENT_BEATS):
            end.beat()
        assert pipe.pieces == [framed(Beat())] * SILENT_BEATS
        assert not end.is_over
        end.beat()
        assert end.is_over

    lost, _, _ = one_end(scenario)
    assert lost == ["nothing was heard for 10 seconds"]


def test_whatever_is_heard_shows_that_the_other_end_is_there():
    def scenario(end, _pipe):
        for _ in range(SILENT_BEATS * 3):
            end.beat()
            end.receive(framed(Beat()))
        assert not end.is_over

    assert one_end(scenario)[0] == []


def test_what_is_no_frame_ends_the_link_once_and_is_the_reason():
    def scenario(end, _pipe):
        end.receive(b"\xff\xff\xff\xff")
        end.receive(b"\xff\xff\xff\xff")
        end.drop("again")
        end.gone()
        end.send(Leave(1))
        assert end.is_over

    lost, _, pipe = one_end(scenario)
    assert len(lost) == 1
    assert "4294967295 bytes" in lost[0]
    assert pipe.pieces == []


def test_a_link_that_nobody_wants_any_more_is_hung_up_when_it_is_there():
    async def play():
        end = End(from_worker, lambda _frame: None, lambda _reason: None)
        end.drop("stopped")
        pipe = Slow(end)
        end.connect(pipe)
        assert pipe.reason is not None

    asyncio.run(play())
