"""A conversation by a microphone and speakers made of nothing, with a real server."""

import asyncio
import io
import os
import signal
import threading
from pathlib import Path

import pytest

from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.shell import Shell
from antiphon.cli.voice.audio import SILENT_CHUNK, split_chunks
from antiphon.cli.voice.devices import AudioDevices, SpeakerPlayback
from antiphon.cli.voice.live import MAX_QUEUED_CHUNKS, MicrophoneQueue, run_live_conversation, run_session
from antiphon.cli.voice.realtime_session import RealtimeSessionOptions, connect_realtime
from antiphon.cli.voice.render import TerminalRenderer
from antiphon.config import load as config
from antiphon.errors import UpstreamError
from antiphon.server.processes.run import background_server
from support.cli.sounds import Sounds
from support.cli.tones import tone

PATIENCE_S = 20
PIECE_BYTES = len(SILENT_CHUNK)
SPEECH = [*split_chunks(tone(300).tobytes()), *[SILENT_CHUNK] * 30]

MODELS = [
    {
        "name": "parrot",
        "engine": "scripted",
        "hears": [{"turn": 1, "says": "Sing."}, {"turn": 2, "says": "Stop."}],
        "answers": [
            {"when": "Sing", "lines": [{"aloud_ms": 60_000, "text": "la"}, {"wait_ms": 60_000}]},
            {"when": "Stop", "say": "I stop."},
        ],
    },
    {"name": "deaf", "engine": "scripted", "abilities": {"audio_in": False, "listens": False}},
]


@pytest.fixture
def client(tmp_path: Path):
    settings = {"models": MODELS, "speech": {"enabled": False}, "logging": {"level": "warning"}}
    with background_server(
        config.load(settings, None, {"HOME": str(tmp_path)}, tmp_path, system_file=tmp_path / "none.toml").config
    ) as base_url:
        yield ApiClient(base_url)


class Screen(io.StringIO):
    """The display of the conversation, with a way to wait for its content."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            self._changed.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.getvalue(), PATIENCE_S), self.getvalue()


class Person:
    """Speaks, hears some of the answer, interrupts it, and once that is answered presses Ctrl-C."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._hears = threading.Event()
        self.heard: list[bool] = []

    def speak(self, bring) -> None:
        try:
            for piece in SPEECH:
                bring(piece)
            assert self._hears.wait(PATIENCE_S)
            for piece in SPEECH:
                bring(piece)
            self._screen.wait_for("I stop.")
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    def listen(self, want) -> None:
        while not any(want(PIECE_BYTES)):
            pass
        self.heard.append(any(want(10 * PIECE_BYTES)))
        self._hears.set()
        self._screen.wait_for("(interrupted)")
        # Of the minute that had come, nothing is left; the short answer after it may have come already.
        self.heard.append(any(want(3000 * PIECE_BYTES)[-100 * PIECE_BYTES :]))


@pytest.fixture
def ctrl_c():
    """Ctrl-C as a terminal's: who is started in the background by a shell is deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def shell_of(out, err):
    return Shell(environ={}, cwd=Path(), stdin=io.StringIO(), stdout=out, stderr=err)


@pytest.mark.usefixtures("ctrl_c")
def test_a_person_interrupts_by_speaking_and_ends_it_by_ctrl_c(client):
    out, err = Screen(), io.StringIO()
    person = Person(out)
    run_live_conversation(
        client, RealtimeSessionOptions(model="parrot"), AudioDevices(Sounds(person.speak, person.listen)), shell_of(out, err)
    )
    assert out.getvalue().splitlines()[:4] == ["     you  Sing.", "   model  la (interrupted)", "     you  Stop.", "   model  I stop."]
    assert person.heard == [True, False]
    assert err.getvalue() == "antiphon: parrot listens; headphones keep it from hearing itself. Ctrl-C ends the conversation.\n"


def test_a_model_that_hears_nothing_ends_it(client):
    devices = AudioDevices(Sounds(lambda bring: bring(SILENT_CHUNK)))
    with pytest.raises(UpstreamError, match="The model takes no audio"):
        run_live_conversation(client, RealtimeSessionOptions(model="deaf"), devices, shell_of(io.StringIO(), io.StringIO()))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_server_is_told_how_much_of_the_answer_was_played(client):
    microphone, playback, shell = MicrophoneQueue(), SpeakerPlayback(), shell_of(io.StringIO(), io.StringIO())

    async def until(holds) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - counters set no event
                await asyncio.sleep(0)

    async with connect_realtime(client, RealtimeSessionOptions(model="parrot")) as session, asyncio.TaskGroup() as tasks:
        talking = tasks.create_task(run_session(session, microphone, playback, TerminalRenderer(shell), shell))
        for _turn in range(2):
            for piece in SPEECH:
                microphone.put(piece)
            await until(lambda: any(playback.read(PIECE_BYTES)))
        await until(lambda: session.event_counts.received["conversation.item.truncated"])
        talking.cancel()
    assert session.event_counts.sent["conversation.item.truncate"] == session.event_counts.received["conversation.item.truncated"] == 1
    assert session.event_counts.received["error"] == 0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_too_much_unsent_sound_the_oldest_is_forgotten():
    microphone = MicrophoneQueue()
    for number in range(MAX_QUEUED_CHUNKS + 2):
        microphone.put(str(number).encode())
    assert [await microphone.next(), await microphone.next()] == [b"2", b"3"]
