"""
Voice activity detection: the probability of speech in every 32 ms of audio.

One `SileroVad` runs Silero's model for all sessions of the process, on the event loop: a frame takes tens of
microseconds, less if frames of several streams are run together. With many streams a frame waits up to 8 ms for others;
with few it doesn't wait. After every run other callbacks of the loop have their turn, so a client that sends minutes of
audio at once delays nobody.

A gate stands before the model. After half a second without speech, frames quieter than the gate's level count as
silence without running the model. When a louder frame opens the gate, the quarter of a second before it is run first,
so that no onset is missed. The probabilities then differ from a run over all of the silence, which makes the model less
sensitive the longer it lasts: speech is found in the same frame, give or take one, or sooner (docs/decisions/0016).

Source: the wrapper for ONNX of silero-vad 6 (MIT), for the model's input: 64 samples of the previous frame, the frame,
the state.
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
from antiphon.speech.base import INPUT_RATE_HZ

MODEL = "silero-vad"
"""Its name in the catalogue."""

# At 16 kHz Silero's model takes frames of 512 samples after 64 of the one before, as `OnnxWrapper` in silero-vad does.
FRAME_SAMPLES = 512
FRAME_MS = FRAME_SAMPLES * 1000 // INPUT_RATE_HZ
OnFrame = Callable[[int, float], None]
"""Takes the start of a frame, in milliseconds since the stream's first sample, and its probability of speech."""

FloatSamples = npt.NDArray[np.float32]

_FRAME_BYTES = FRAME_SAMPLES * SAMPLE_BYTES
_CONTEXT_SAMPLES = 64
_STATE_SIZE = 128
_MAX_BATCH = 32  # halves the cost per frame; more gain little and block the loop longer
_FEW_STREAMS = 4
_BATCH_WAIT_S = 0.008

QUIET_DBFS = -70.0
"""
Frames below this, root mean square, are silence: in the faintest speech that the model detects, loud frames are at -62.
"""
_QUIET_ENERGY = FRAME_SAMPLES * 10 ** (QUIET_DBFS / 10)
_SILENCE_PROBABILITY = 0.1
_GATE_CLOSE_FRAMES = 16  # half a second
_GATE_PREROLL_FRAMES = 8  # a quarter of a second
_MAX_SKIPPED_FRAMES = 256


class SileroVad:
    """
    The model, and the streams that wait to be run.

    Args:
        path: of `silero_vad.onnx`.
        is_gated: whether there is a gate before the model.
    """

    def __init__(self, path: Path, *, is_gated: bool = True) -> None:
        self._path = path
        self._is_gated = is_gated
        self._model: onnxruntime.InferenceSession | None = None
        self._ready_streams: OrderedDict[VadStream, None] = OrderedDict()
        self._run_handle: asyncio.Handle | None = None
        self._free_slots: list[int] = []
        self._states = np.zeros((2, 0, _STATE_SIZE), np.float32)
        self._contexts = np.zeros((0, _CONTEXT_SAMPLES), np.float32)
        self._inputs = np.zeros((_MAX_BATCH, _CONTEXT_SAMPLES + FRAME_SAMPLES), np.float32)
        self._rate_hz = np.array(INPUT_RATE_HZ, np.int64)

    async def start(self) -> None:
        """
        Load the model; once.

        Raises:
            ServerError: the model is missing, or can't be loaded.
        """
        self._model = await asyncio.to_thread(onnx.load_required_model, self._path, MODEL)

    def stop(self) -> None:
        """Deliver no more frames; idempotent."""
        self._ready_streams.clear()
        if self._run_handle is not None:
            self._run_handle.cancel()
            self._run_handle = None

    def open(self, on_frame: OnFrame) -> "VadStream":
        """
        A new stream of audio; the caller closes it.

        Args:
            on_frame: takes every frame in order, from within `VadStream.append_audio` or a callback of the loop.
        """
        if not self._free_slots:
            self._grow()
        slot = self._free_slots.pop()
        self._states[:, slot] = 0
        self._contexts[slot] = 0
        return VadStream(self, slot, on_frame, self._is_gated)

    @property
    def open_stream_count(self) -> int:
        """How many streams are open."""
        return len(self._contexts) - len(self._free_slots)

    def schedule(self, stream: "VadStream") -> None:
        """Run the stream's frames soon."""
        self._ready_streams[stream] = None
        if len(self._ready_streams) >= _MAX_BATCH or self.open_stream_count <= _FEW_STREAMS:
            self._schedule_now()
        elif self._run_handle is None:
            self._run_handle = asyncio.get_running_loop().call_later(_BATCH_WAIT_S, self._run)

    def release(self, slot: int) -> None:
        """Free the slot of a closed stream."""
        self._free_slots.append(slot)

    def _grow(self) -> None:
        before = len(self._contexts)
        more = max(before, _MAX_BATCH)
        self._states = np.concatenate([self._states, np.zeros((2, more, _STATE_SIZE), np.float32)], axis=1)
        self._contexts = np.concatenate([self._contexts, np.zeros((more, _CONTEXT_SAMPLES), np.float32)])
        self._free_slots.extend(range(before, before + more))

    def _schedule_now(self) -> None:
        if isinstance(self._run_handle, asyncio.TimerHandle):
            self._run_handle.cancel()
            self._run_handle = None
        if self._run_handle is None:
            self._run_handle = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """Run one frame of every stream that has one, up to the batch size; then let the loop go on."""
        self._run_handle = None
        streams = self._fill_batch()
        if streams:
            for stream, probability in zip(streams, self._infer([stream.slot for stream in streams]), strict=True):
                stream.on_probability(probability)
            self._ready_streams.update((stream, None) for stream in streams if stream.has_frames)
        if self._ready_streams:
            self._schedule_now()

    def _fill_batch(self) -> "list[VadStream]":
        streams: list[VadStream] = []
        for _ in range(min(len(self._ready_streams), _MAX_BATCH)):
            stream, _none = self._ready_streams.popitem(last=False)
            if stream.read_frame(self._inputs[len(streams), _CONTEXT_SAMPLES:]):
                streams.append(stream)
            elif stream.has_frames:  # the gate skipped so many frames that others come first
                self._ready_streams[stream] = None
        return streams

    def _infer(self, slots: list[int]) -> list[float]:
        assert self._model is not None, "start comes first"
        inputs = self._inputs[: len(slots)]
        inputs[:, :_CONTEXT_SAMPLES] = self._contexts[slots]
        feeds = {"input": inputs, "state": self._states.take(slots, axis=1), "sr": self._rate_hz}
        probabilities, states = self._model.run(None, feeds)
        self._states[:, slots] = states
        self._contexts[slots] = inputs[:, -_CONTEXT_SAMPLES:]
        return probabilities[:, 0].tolist()  # type: ignore[no-any-return]


class VadStream:
    """
    One stream of audio.

    Attributes:
        slot: index of its model state.
    """

    def __init__(self, vad: SileroVad, slot: int, on_frame: OnFrame, is_gated: bool) -> None:
        self.slot = slot
        self._vad = vad
        self._on_frame = on_frame
        self._is_gated = is_gated
        self._is_open = True
        self._remainder = b""
        self._frames: deque[bytes] = deque()
        self._delivered_frames = 0
        # Silent frames in a row close the gate. It keeps the last quiet frames, which are run when it opens: they are
        # at the head of `_frames`, and were delivered as silence already, so their probabilities are not delivered.
        self._silent_frames = 0
        self._is_gate_closed = False
        self._preroll_frames: deque[bytes] = deque(maxlen=_GATE_PREROLL_FRAMES)
        self._frames_to_replay = 0

    @property
    def has_frames(self) -> bool:
        """Whether frames wait to be run."""
        return bool(self._frames)

    def append_audio(self, pcm: bytes) -> None:
        """
        Append audio.

        Args:
            pcm: s16le mono at `INPUT_RATE_HZ`, whole samples, any number of them.
        """
        had_frames = self.has_frames
        audio = self._remainder + pcm
        whole_bytes = len(audio) // _FRAME_BYTES * _FRAME_BYTES
        self._frames.extend(audio[start : start + _FRAME_BYTES] for start in range(0, whole_bytes, _FRAME_BYTES))
        self._remainder = audio[whole_bytes:]
        if had_frames or not self._frames:
            return
        if self._is_gate_closed:
            self.skip_silence()
        if self.has_frames:
            self._vad.schedule(self)

    def drop_frames(self) -> None:
        """Drop the frames that wait; the clock counts them all the same."""
        self._delivered_frames += len(self._frames) - self._frames_to_replay
        self._frames.clear()
        self._frames_to_replay = 0

    def close(self) -> None:
        """Deliver no more frames, and free the slot; idempotent."""
        if self._is_open:
            self._is_open = False
            self._frames.clear()
            self._vad.release(self.slot)

    def read_frame(self, samples: FloatSamples) -> bool:
        """Put the next frame into `samples`; False if there is none for the model."""
        if self._is_gate_closed:
            self.skip_silence()
        if self._is_gate_closed or not self._frames:
            return False
        _decode_frame(self._frames.popleft(), samples)
        return True

    def on_probability(self, probability: float) -> None:
        """Take the model's result for the last frame read."""
        if self._frames_to_replay:
            self._frames_to_replay -= 1
            return
        self._silent_frames = self._silent_frames + 1 if probability < _SILENCE_PROBABILITY else 0
        self._is_gate_closed = self._is_gated and self._silent_frames >= _GATE_CLOSE_FRAMES
        self._deliver_probability(probability)

    def skip_silence(self) -> None:
        """Deliver quiet frames as silence, up to a frame that opens the gate."""
        for _ in range(min(len(self._frames), _MAX_SKIPPED_FRAMES)):
            frame = self._frames.popleft()
            _decode_frame(frame, _scratch)
            if np.dot(_scratch, _scratch) > _QUIET_ENERGY:
                self._open_gate(frame)
                return
            self._preroll_frames.append(frame)
            self._deliver_probability(0.0)

    def _open_gate(self, frame: bytes) -> None:
        self._is_gate_closed, self._silent_frames = False, 0
        self._frames_to_replay = len(self._preroll_frames)
        self._frames.extendleft((frame, *reversed(self._preroll_frames)))
        self._preroll_frames.clear()

    def _deliver_probability(self, probability: float) -> None:
        if self._is_open:
            start_ms = self._delivered_frames * FRAME_MS
            self._delivered_frames += 1
            self._on_frame(start_ms, probability)


_scratch = np.zeros(FRAME_SAMPLES, np.float32)


def _decode_frame(frame: bytes, samples: FloatSamples) -> None:
    """Put the frame into `samples`, as -1 to 1."""
    np.multiply(np.frombuffer(frame, "<i2"), 1 / 32_768, out=samples)
