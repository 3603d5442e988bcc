"""
A Piper voice, cut before its decoder: the rest works on a whole text, the decoder on pieces of it.

The decoder (HiFi-GAN) takes two thirds of the time, and a sample depends on a few frames around it only. Decoded with
these, a piece has the same samples as in the whole.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from antiphon.speech.onnx_graph import OnnxGraph, extra_output
from antiphon.speech.tts.child import SynthesisJob
from antiphon.speech.tts.onnx_voice import load, run

FIRST_PIECE_FRAMES, MAX_PIECE_FRAMES = 24, 96
"""
The first piece is soon there. Each other has twice as many frames as the one before, so that less is decoded twice; by
then there is sound ahead.
"""

CONTEXT_FRAMES = (10, 16, 32)
"""
Frames that are decoded on each side of a piece: the fewest with which the voice keeps to `MAX_DIFFERENCE`. For the
quality `medium` it is 10, and the difference 1e-6.
"""

MAX_DIFFERENCE = 1e-4
"""Between a sample of a piece and the same sample of the whole: three steps of 16 bits."""

_DECODER_WEIGHT = "dec.conv_pre.weight"
_DURATION_OP_TYPE = "Ceil"


class PiperModel:
    """
    The model in a file. One that can't be cut, or does not keep to `MAX_DIFFERENCE`, is decoded whole.

    Args:
        speaker: the input that chooses one of several speakers.

    Attributes:
        hop: samples of a frame; known after `calibrate`.
    """

    def __init__(self, path: Path, speaker: Mapping[str, np.ndarray]) -> None:
        self.hop = 1
        self._context: int | None = None
        model = path.read_bytes()
        graph = OnnxGraph(model)
        durations, latents = graph.only_output(_DURATION_OP_TYPE), graph.input_weighted_by(_DECODER_WEIGHT)
        self._decoder = _Decoder.cut(graph, latents, speaker) if durations is not None and latents is not None else None
        if durations is not None:
            model = graph.extract((self._decoder.latents, durations)) if self._decoder else model + extra_output(durations)
        del graph  # and with it what is left of the file, before loading takes the most memory
        self._encoder = load(model)
        self._encoder_inputs = [each.name for each in self._encoder.get_inputs()]

    def encode(self, feeds: Mapping[str, np.ndarray], job: SynthesisJob) -> tuple[np.ndarray, np.ndarray | None]:
        """
        What `decode` takes for a text, and the frames of each of its phoneme ids; None if the voice doesn't report
        them.

        Raises:
            SynthesisStopped: the job was stopped; the other methods raise it, too.
        """
        latents, *durations = run(self._encoder, {name: feeds[name] for name in self._encoder_inputs}, job)
        return latents, durations[0].reshape(-1).astype(int) if durations else None

    def calibrate(self, feeds: Mapping[str, np.ndarray], job: SynthesisJob) -> np.ndarray:
        """Find out from a text what a frame is, and how much must be decoded around a piece; returns the text's sound."""
        self._context = None
        latents, durations = self.encode(feeds, job)
        (whole,) = self.decode(latents, 0, None, job)
        if durations is None or not (frames := int(durations.sum())):
            return whole
        self.hop = whole.size // frames
        for context in CONTEXT_FRAMES if self._decoder is not None else ():
            self._context = context
            sound = np.concatenate([*self.decode(latents, 0, frames, job)])
            if sound.shape == whole.shape and np.abs(sound - whole).max() <= MAX_DIFFERENCE:
                return whole
        self._context = None
        return whole

    def decode(self, latents: np.ndarray, start: int, end: int | None, job: SynthesisJob) -> Iterator[np.ndarray]:
        """The sound from one frame to another, or to the last, in pieces."""
        if self._decoder is None or self._context is None or end is None:
            sound = latents.reshape(-1) if self._decoder is None else self._decoder.run(latents, job)
            yield sound[start * self.hop : None if end is None else end * self.hop]
            return
        size = FIRST_PIECE_FRAMES
        while start < end:
            stop = min(start + size, end)
            first = max(start - self._context, 0)
            sound = self._decoder.run(latents[:, :, first : stop + self._context], job)
            yield sound[(start - first) * self.hop : (stop - first) * self.hop]
            start, size = stop, min(2 * size, MAX_PIECE_FRAMES)


class _Decoder:
    """
    The last part of a model.

    Attributes:
        latents: the tensor that it works on.
    """

    def __init__(self, session: onnxruntime.InferenceSession, latents: str, speaker: Mapping[str, np.ndarray]) -> None:
        self.latents = latents
        self._session = session
        self._speaker = speaker

    @classmethod
    def cut(cls, graph: OnnxGraph, latents: str, speaker: Mapping[str, np.ndarray]) -> "_Decoder | None":
        """The part behind that tensor; None if it needs more of the text than that."""
        session = load(graph.extract(graph.outputs, (latents,)))
        others = {each.name for each in session.get_inputs()} - {latents}
        return cls(session, latents, {name: speaker[name] for name in others}) if others <= speaker.keys() else None

    def run(self, latents: np.ndarray, job: SynthesisJob) -> np.ndarray:
        (sound,) = run(self._session, {self.latents: latents, **self._speaker}, job)
        return sound.reshape(-1)
