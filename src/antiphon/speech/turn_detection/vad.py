"""
Voice activity: how likely someone speaks, for every 32 ms of sound.

One `VoiceActivity` runs Silero's model for all sessions of the process, on the event loop: a frame takes tens of microseconds, less where
frames of several streams go through together. A frame of one of several streams waits up to 8 ms for others; one of few streams waits
for none. After every run the loop has its turn, so that a client with minutes of sound at once holds up nobody.

Before the model is a gate. Where nobody has spoken for half a second, frames quieter than the gate's level are told to be silence without
asking the model. The quarter of a second before the sound that opens the gate is then run first, so that no onset is missed. What the model
says next is not what it would have said after hearing all of the silence, which makes it duller the longer it lasts: speech is found in the
same frame, give or take one, or sooner (docs/decisions/0016).

Source: the wrapper for ONNX of silero-vad 6 (MIT), for what the model takes: 64 samples of the frame before, the frame, its state.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from antiphon.audio import SAMPLE_BYTES
from antiphon.speech import onnx
from antiphon.speech.base import HEARING_RATE_HZ

MODEL = "silero-vad"
"""What it is called in the catalogue."""

FRAME_SAMPLES = 512
FRAME_MS = FRAME_SAMPLES * 1000 // HEARING_RATE_HZ
Deliver = Callable[[int, float], None]
"""Takes where a frame starts, in milliseconds since the stream's first sample, and how likely someone speaks in it."""

Samples = npt.NDArray[np.float32]

_FRAME_BYTES = FRAME_SAMPLES * SAMPLE_BYTES
_CONTEXT_SAMPLES = 64
_STATE_SIZE = 128
_MOST_AT_ONCE = 32  # half the price of one alone; more gain little and hold the loop for longer
_FEW_STREAMS = 4
_PATIENCE_S = 0.008

QUIET_DBFS = -70.0
"""Quieter than that, root mean square, is silence: of speech that the model can just make out, the loud frames are at -62."""
_QUIET_ENERGY = FRAME_SAMPLES * 10 ** (QUIET_DBFS / 10)
_NOBODY = 0.1
_FRAMES_TILL_SHUT = 16
_FRAMES_RUN_LATE = 8
_MOST_HELD_BACK = 256


class VoiceActivity:
    """
    The model, and the streams that wait for it.

    Args:
        path: of `silero_vad.onnx`.
        gated: whether there is a gate before the model.
    """

    def __init__(self, path: Path, *, gated: bool = True) -> None:
        self._path = path
        self._gated = gated
        self._model: onnxruntime.InferenceSession | None = None
        self._ready: OrderedDict[Stream, None] = OrderedDict()
        self._due: asyncio.Handle | None = None
        self._free: list[int] = []
        self._states = np.zeros((2, 0, _STATE_SIZE), np.float32)
        self._contexts = np.zeros((0, _CONTEXT_SAMPLES), np.float32)
        self._inputs = np.zeros((_MOST_AT_ONCE, _CONTEXT_SAMPLES + FRAME_SAMPLES), np.float32)
        self._rate_hz = np.array(HEARING_RATE_HZ, np.int64)

    async def start(self) -> None:
        """
        Load the model; once.

        Raises:
            OurFault: it is missing, or is not what it should be.
        """
        self._model = await asyncio.to_thread(onnx.required, self._path, MODEL)

    def stop(self) -> None:
        """Tell no more; idempotent."""
        self._ready.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def open(self, deliver: Deliver) -> "Stream":
        """
        A stream of sound to listen to; close it when it ends.

        Args:
            deliver: takes every frame in order, from within `Stream.hear` or a callback of the loop.
        """
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._states[:, slot] = 0
        self._contexts[slot] = 0
        return Stream(self, slot, deliver, self._gated)

    @property
    def open_streams(self) -> int:
        """How many streams there are."""
        return len(self._contexts) - len(self._free)

    def wake(self, stream: "Stream") -> None:
        """Run the stream's frames soon."""
        self._ready[stream] = None
        if len(self._ready) >= _MOST_AT_ONCE or self.open_streams <= _FEW_STREAMS:
            self._hurry()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(_PATIENCE_S, self._run)

    def release(self, slot: int) -> None:
        """The stream that had that place is closed."""
        self._free.append(slot)

    def _grow(self) -> None:
        before = len(self._contexts)
        more = max(before, _MOST_AT_ONCE)
        self._states = np.concatenate([self._states, np.zeros((2, more, _STATE_SIZE), np.float32)], axis=1)
        self._contexts = np.concatenate([self._contexts, np.zeros((more, _CONTEXT_SAMPLES), np.float32)])
        self._free.extend(range(before, before + more))

    def _hurry(self) -> None:
        if isinstance(self._due, asyncio.TimerHandle):
            self._due.cancel()
            self._due = None
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """One frame of every stream that has one, up to as many as go at once; then the loop has its turn."""
        self._due = None
        streams = self._fill()
        if streams:
            for stream, probability in zip(streams, self._infer([stream.slot for stream in streams]), strict=True):
                stream.take(probability)
            self._ready.update((stream, None) for stream in streams if stream.waits)
        if self._ready:
            self._hurry()

    def _fill(self) -> "list[Stream]":
        streams: list[Stream] = []
        for _ in range(min(len(self._ready), _MOST_AT_ONCE)):
            stream, _none = self._ready.popitem(last=False)
            if stream.fill(self._inputs[len(streams), _CONTEXT_SAMPLES:]):
                streams.append(stream)
            elif stream.waits:  # the gate held back so many that others come first
                self._ready[stream] = None
        return streams

    def _infer(self, slots: list[int]) -> list[float]:
        assert self._model is not None, "start comes first"
        inputs = self._inputs[: len(slots)]
        inputs[:, :_CONTEXT_SAMPLES] = self._contexts[slots]
        fed = {"input": inputs, "state": self._states.take(slots, axis=1), "sr": self._rate_hz}
        probabilities, states = self._model.run(None, fed)
        self._states[:, slots] = states
        self._contexts[slots] = inputs[:, -_CONTEXT_SAMPLES:]
        return probabilities[:, 0].tolist()  # type: ignore[no-any-return]


class Stream:
    """
    One stream of sound.

    Attributes:
        slot: where the model's state of it is.
    """

    def __init__(self, activity: VoiceActivity, slot: int, deliver: Deliver, gated: bool) -> None:
        self.slot = slot
        self._activity = activity
        self._deliver = deliver
        self._gated = gated
        self._open = True
        self._rest = b""
        self._frames: deque[bytes] = deque()
        self._told = 0
        # Frames in a row with nobody in them shut the gate. What it then holds back is kept for a while, and run when it opens; of those
        # at the head of the frames that are run for the second time, nothing is told.
        self._nobody = 0
        self._shut = False
        self._held: deque[bytes] = deque(maxlen=_FRAMES_RUN_LATE)
        self._late = 0

    @property
    def waits(self) -> bool:
        """Whether there are frames that nothing was told of yet."""
        return bool(self._frames)

    def hear(self, pcm: bytes) -> None:
        """
        The sound goes on.

        Args:
            pcm: s16le mono at `HEARING_RATE_HZ`, whole samples, any number of them.
        """
        waited = self.waits
        sound = self._rest + pcm
        whole_bytes = len(sound) // _FRAME_BYTES * _FRAME_BYTES
        self._frames.extend(sound[at : at + _FRAME_BYTES] for at in range(0, whole_bytes, _FRAME_BYTES))
        self._rest = sound[whole_bytes:]
        if waited or not self._frames:
            return
        if self._shut:
            self.hold_back()
        if self.waits:
            self._activity.wake(self)

    def drop(self) -> None:
        """Tell nothing of the frames that wait; what comes after them is where it is all the same."""
        self._told += len(self._frames) - self._late
        self._frames.clear()
        self._late = 0

    def close(self) -> None:
        """Hear no more, and tell no more; idempotent."""
        if self._open:
            self._open = False
            self._frames.clear()
            self._activity.release(self.slot)

    def fill(self, samples: Samples) -> bool:
        """Whether there is a frame for the model; it is put into `samples`."""
        if self._shut:
            self.hold_back()
        if self._shut or not self._frames:
            return False
        _read(self._frames.popleft(), samples)
        return True

    def take(self, probability: float) -> None:
        """What the model says of the frame that it was given."""
        if self._late:
            self._late -= 1
            return
        self._nobody = self._nobody + 1 if probability < _NOBODY else 0
        self._shut = self._gated and self._nobody >= _FRAMES_TILL_SHUT
        self._tell(probability)

    def hold_back(self) -> None:
        """Tell that there is silence in the quiet frames that wait, up to one that opens the gate."""
        for _ in range(min(len(self._frames), _MOST_HELD_BACK)):
            frame = self._frames.popleft()
            _read(frame, _scratch)
            if np.dot(_scratch, _scratch) > _QUIET_ENERGY:
                self._unshut(frame)
                return
            self._held.append(frame)
            self._tell(0.0)

    def _unshut(self, frame: bytes) -> None:
        self._shut, self._nobody = False, 0
        self._late = len(self._held)
        self._frames.extendleft((frame, *reversed(self._held)))
        self._held.clear()

    def _tell(self, probability: float) -> None:
        if self._open:
            start_ms = self._told * FRAME_MS
            self._told += 1
            self._deliver(start_ms, probability)


_scratch = np.zeros(FRAME_SAMPLES, np.float32)


def _read(frame: bytes, samples: Samples) -> None:
    """Put the frame into `samples`, from -1 to 1."""
    np.multiply(np.frombuffer(frame, "<i2"), 1 / 32_768, out=samples)
