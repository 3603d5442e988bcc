"""One end of a link: what waits for a slow reader, and how silence ends it."""

import asyncio

from antiphon.engine_api import commands
from antiphon.framing import FrameDecoder, pack_frame
from antiphon.link import BUFFER_LIMIT_BYTES, HEARTBEAT_S, MAX_SILENT_BEATS, MAX_WRITE_BYTES, LinkEndpoint
from antiphon.wire.internal.worker_link import (
    CloseConversation,
    EngineCommands,
    Heartbeat,
    from_worker_decoder,
    to_worker_decoder,
)


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
        end = LinkEndpoint(from_worker_decoder, lambda _frame: None, lost.append, held.append, Heartbeat())
        pipe = Slow(end, takes)
        end.connect(pipe)
        scenario(end, pipe)
        await asyncio.sleep(0)
        return lost, held, pipe

    return asyncio.run(play())


def hear(size):
    return EngineCommands(1, (commands.AppendAudio(bytes(size)),))


def test_a_frame_leaves_at_once_and_in_one_piece():
    def scenario(end, pipe):
        end.send(CloseConversation(1))
        assert pipe.pieces == [pack_frame(CloseConversation(1))]

    one_end(scenario)


def test_what_a_slow_reader_does_not_take_waits_in_its_order_and_is_cut_to_pieces():
    frames = [hear(MAX_WRITE_BYTES * 3), CloseConversation(1), CloseConversation(2)]

    def scenario(end, pipe):
        for frame in frames:
            end.send(frame)
        assert len(pipe.pieces) == 1
        assert end.buffer_bytes > MAX_WRITE_BYTES * 2
        for _ in range(6):
            pipe.request_type = 1
            end.resume()
        assert list(FrameDecoder(to_worker_decoder).feed(b"".join(pipe.pieces))) == frames
        assert max(map(len, pipe.pieces)) == MAX_WRITE_BYTES
        assert end.buffer_bytes == 0

    _, held, _ = one_end(scenario, takes=1)
    assert held[0] is True


def test_whoever_writes_is_told_when_the_reader_is_behind_and_when_it_has_caught_up():
    def scenario(end, pipe):
        end.send(CloseConversation(1))
        end.send(CloseConversation(2))
        pipe.request_type = 100
        end.resume()

    _, held, _ = one_end(scenario, takes=1)
    assert held == [True, False]


def test_a_reader_that_lets_too_much_wait_is_dropped():
    def scenario(end, _pipe):
        for _ in range(BUFFER_LIMIT_BYTES // (16 << 20) + 1):
            end.send(hear(16 << 20))
        assert end.is_over

    lost, _, pipe = one_end(scenario, takes=1)
    assert lost == [pipe.reason] == ["too much waits to be read"]


def test_an_end_that_hears_nothing_for_some_beats_drops_the_other():
    def scenario(end, pipe):
        for _ in range(MAX_SILENT_BEATS):
            end.heartbeat()
        assert pipe.pieces == [pack_frame(Heartbeat())] * MAX_SILENT_BEATS
        assert not end.is_over
        end.heartbeat()
        assert end.is_over

        assert end.is_silent
        assert MAX_SILENT_BEATS * HEARTBEAT_S < (MAX_SILENT_BEATS + 1) * HEARTBEAT_S <= 10

    lost, _, _ = one_end(scenario)
    assert lost == ["nothing came for 8 seconds"]


def test_an_end_that_expects_no_heartbeats_sends_them_all_the_same():
    def scenario(end, pipe):
        end.start_heartbeat(expects_others=False)
        for _ in range(MAX_SILENT_BEATS * 3):
            end.heartbeat()
        assert pipe.pieces == [pack_frame(Heartbeat())] * MAX_SILENT_BEATS * 3
        assert not end.is_over

    assert one_end(scenario)[0] == []


def test_whatever_is_heard_shows_that_the_other_end_is_there():
    def scenario(end, _pipe):
        for _ in range(MAX_SILENT_BEATS * 3):
            end.heartbeat()
            end.receive(pack_frame(Heartbeat()))
        assert not end.is_over

    assert one_end(scenario)[0] == []


def test_what_is_no_frame_ends_the_link_once_and_is_the_reason():
    def scenario(end, _pipe):
        end.receive(b"\xff\xff\xff\xff")
        end.receive(b"\xff\xff\xff\xff")
        end.abort("again")
        end.connection_lost()
        end.send(CloseConversation(1))
        assert end.is_over

    lost, _, pipe = one_end(scenario)
    assert len(lost) == 1
    assert "4294967295 bytes" in lost[0]
    assert pipe.pieces == []


def test_a_link_that_nobody_wants_any_more_is_hung_up_when_it_is_there():
    async def play():
        end = LinkEndpoint(from_worker_decoder, lambda _frame: None, lambda _reason: None)
        end.abort("stopped")
        pipe = Slow(end)
        end.connect(pipe)
        assert pipe.reason is not None

    asyncio.run(play())
