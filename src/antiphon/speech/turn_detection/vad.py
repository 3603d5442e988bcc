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

A stream at 24 or 8 kHz is kept as it came. Only frames that the model is run on are resampled, all of a batch at once
(docs/decisions/0047).

The model is run as another graph with the weights in its file (`silero_graph`).

Source: the wrapper for ONNX of silero-vad 6 (MIT), for the model's input: 64 samples of the previous frame, the frame,
the state.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime

from antiphon.audio import SAMPLE_BYTES
from antiphon.speech import onnx
from antiphon.speech.base import INPUT_RATE_HZ
from antiphon.speech.dsp.polyphase import DETECTION, RATES_HZ, TRANSCRIPTION, PolyphaseFilter, polyphase_filter, resample_part
from antiphon.speech.turn_detection import silero_graph
from antiphon.speech.turn_detection.silero_graph import CONTEXT_SAMPLES, FRAME_SAMPLES, ROW_SAMPLES, STATE_SIZE

MODEL = "silero-vad"
"""Its name in the catalogue."""

FRAME_MS = FRAME_SAMPLES * 1000 // INPUT_RATE_HZ
OnFrame = Callable[[int, float], None]
"""Takes the start of a frame, in milliseconds since the stream's first sample, and its probability of speech."""

FloatSamples = npt.NDArray[np.float32]

_MAX_BATCH = 32  # a frame costs a seventh of one that is run alone; more gain little and block the loop longer
_FEW_STREAMS = 4
_BATCH_WAIT_S = 0.008

QUIET_DBFS = -70.0
"""
Frames below this, root mean square, are silence: in the faintest speech that the model detects, loud frames are at -62.
"""
_SAMPLE = np.dtype("<i2")
_FULL_SCALE = 32_768
_QUIET_SAMPLE_ENERGY = _FULL_SCALE**2 * 10 ** (QUIET_DBFS / 10)
_SILENCE_PROBABILITY = 0.1
_GATE_CLOSE_FRAMES = 16  # half a second
_GATE_PREROLL_FRAMES = 8  # a quarter of a second
_MAX_SKIPPED_FRAMES = 256


class _Layout(NamedTuple):
    """
    How frames of one rate are kept: with as much of the audio around them as their filter needs.

    Attributes:
        needed_bytes: how much audio there must be from the context on that is before a frame: what speech was found in
            can then be transcribed.
        size_bytes: of a frame with its context; no other rate has frames of this size.
        filter: None where the rate is the model's.
        quiet_energy: up to so much, the sum of its samples' squares, a frame is quiet.
    """

    rate_hz: int
    frame_bytes: int
    context_bytes: int
    needed_bytes: int
    size_bytes: int
    filter: PolyphaseFilter | None
    quiet_energy: float


def _layout(rate_hz: int, filter: PolyphaseFilter | None, lookahead: int) -> _Layout:
    """
    Args:
        lookahead: samples after a frame.
    """
    samples, context = FRAME_MS * rate_hz // 1000, 0 if filter is None else filter.context
    return _Layout(
        rate_hz=rate_hz,
        frame_bytes=samples * SAMPLE_BYTES,
        context_bytes=context * SAMPLE_BYTES,
        needed_bytes=(context + samples + lookahead) * SAMPLE_BYTES,
        size_bytes=(samples + 2 * context) * SAMPLE_BYTES,
        filter=filter,
        quiet_energy=samples * _QUIET_SAMPLE_ENERGY,
    )


@cache
def _layouts() -> dict[int, _Layout]:
    """How frames are kept, by the rate of their stream."""
    layouts = {INPUT_RATE_HZ: _layout(INPUT_RATE_HZ, None, 0)}
    for rate_hz in RATES_HZ:
        layouts[rate_hz] = _layout(rate_hz, polyphase_filter(rate_hz, DETECTION), polyphase_filter(rate_hz, TRANSCRIPTION).context)
    return layouts


@cache
def _layouts_by_size() -> dict[int, _Layout]:
    return {layout.size_bytes: layout for layout in _layouts().values()}


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
        self._states = np.zeros((2, 0, STATE_SIZE), np.float32)
        self._contexts = np.zeros((0, CONTEXT_SAMPLES), np.float32)
        self._rows = np.zeros((_MAX_BATCH, ROW_SAMPLES), np.float32)

    async def start(self) -> None:
        """
        Load the model; once.

        Raises:
            ServerError: the model is missing, or can't be loaded.
        """
        self._model = await asyncio.to_thread(onnx.load_required_model, self._path, MODEL, silero_graph.build)

    def stop(self) -> None:
        """Deliver no more frames; idempotent."""
        self._ready_streams.clear()
        if self._run_handle is not None:
            self._run_handle.cancel()
            self._run_handle = None

    def open(self, on_frame: OnFrame, rate_hz: int = INPUT_RATE_HZ) -> "VadStream":
        """
        A new stream of audio; the caller closes it.

        Args:
            on_frame: takes every frame in order, from within `VadStream.append_audio` or a callback of the loop.
            rate_hz: 8, 16 or 24 kHz.
        """
        if not self._free_slots:
            self._grow()
        slot = self._free_slots.pop()
        self._states[:, slot] = 0
        self._contexts[slot] = 0
        return VadStream(self, slot, on_frame, rate_hz, self._is_gated)

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
        self._states = np.concatenate([self._states, np.zeros((2, more, STATE_SIZE), np.float32)], axis=1)
        self._contexts = np.concatenate([self._contexts, np.zeros((more, CONTEXT_SAMPLES), np.float32)])
        self._free_slots.extend(range(before, before + more))

    def _schedule_now(self) -> None:
        # The timer would wait for more streams, and there are enough.
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
        frames: list[bytes] = []
        for _ in range(min(len(self._ready_streams), _MAX_BATCH)):
            stream, _none = self._ready_streams.popitem(last=False)
            if (frame := stream.next_frame()) is not None:
                streams.append(stream)
                frames.append(frame)
            elif stream.has_frames:  # the gate skipped so many frames that others come first
                self._ready_streams[stream] = None
        _decode_frames(frames, self._rows[: len(frames), CONTEXT_SAMPLES : CONTEXT_SAMPLES + FRAME_SAMPLES])
        return streams

    def _infer(self, slots: list[int]) -> list[float]:
        assert self._model is not None, "start comes first"
        rows = self._rows[: len(slots)]
        rows[:, :CONTEXT_SAMPLES] = self._contexts[slots]
        probabilities, states = self._model.run(None, silero_graph.fold(rows) | {"state": self._states.take(slots, axis=1)})
        self._states[:, slots] = states
        self._contexts[slots] = rows[:, FRAME_SAMPLES : FRAME_SAMPLES + CONTEXT_SAMPLES]
        return probabilities.reshape(-1).tolist()  # type: ignore[no-any-return]


class VadStream:
    """
    One stream of audio.

    Attributes:
        slot: index of its model state.
    """

    def __init__(self, vad: SileroVad, slot: int, on_frame: OnFrame, rate_hz: int, is_gated: bool) -> None:
        self.slot = slot
        self._vad = vad
        self._on_frame = on_frame
        self._is_gated = is_gated
        self._is_open = True
        self._layout = _layouts()[rate_hz]
        self._needed_bytes = self._layout.needed_bytes
        self._remainder = bytes(self._layout.context_bytes)  # begins with the context of the frame to come
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
            pcm: s16le mono at the stream's rate, whole samples, any number of them.
        """
        audio = self._remainder + pcm
        last = len(audio) - self._needed_bytes
        if last < 0:
            self._remainder = audio
            return
        frames, frame_bytes, size_bytes, start = self._frames, self._layout.frame_bytes, self._layout.size_bytes, 0
        had_frames = bool(frames)
        while start <= last:
            # With the context on both sides, so frames overlap.
            frames.append(audio[start : start + size_bytes])
            start += frame_bytes
        self._remainder = audio[start:]
        # It is scheduled already.
        if had_frames:
            return
        if self._is_gate_closed:
            self.skip_silence()
        if frames:
            self._vad.schedule(self)

    def set_rate(self, rate_hz: int) -> None:
        """Set the rate of the audio to come: the one it has, or 16 kHz."""
        if rate_hz != self._layout.rate_hz:
            context, whole = (
                size * INPUT_RATE_HZ // self._layout.rate_hz // SAMPLE_BYTES for size in (self._layout.context_bytes, len(self._remainder))
            )
            self._remainder = resample_part(self._remainder, self._layout.rate_hz, context, whole)
            self._layout = _layouts()[rate_hz]
            self._needed_bytes = self._layout.needed_bytes

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

    def next_frame(self) -> bytes | None:
        """The next frame for the model, with its context; None if there is none."""
        if self._is_gate_closed:
            self.skip_silence()
        return None if self._is_gate_closed or not self._frames else self._frames.popleft()

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
            if not _is_quiet(frame):
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


def _is_quiet(frame: bytes) -> bool:
    layout = _layouts_by_size()[len(frame)]
    samples = np.frombuffer(frame, _SAMPLE, layout.frame_bytes // SAMPLE_BYTES, layout.context_bytes).astype(np.float32)
    return float(samples.dot(samples)) <= layout.quiet_energy


def _decode_frames(frames: list[bytes], rows: FloatSamples) -> None:
    """Put each frame into a row, at the model's rate, as -1 to 1."""
    row = 0
    for size_bytes, group in groupby(frames, len):
        pcm = b"".join(group)
        count = len(pcm) // size_bytes
        samples = np.frombuffer(pcm, _SAMPLE).reshape(count, size_bytes // SAMPLE_BYTES)
        filter = _layouts_by_size()[size_bytes].filter
        output = samples if filter is None else filter.process(samples.astype(np.float32))
        np.multiply(output, 1 / _FULL_SCALE, out=rows[row : row + count])
        row += count
