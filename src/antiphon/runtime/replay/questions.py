"""
When a person had finished speaking, in a recording and wherever it is said again.

Nobody says so in full duplex, and a server that listens for it says so when it has noticed, which is part of what is to be measured. So it
is read from the sound: by its loudness, and the same in both sessions, as the sound is the same.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, peak, size_bytes
from antiphon.runtime.recording.events import IN, MediaReference, find_media
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.mixing import PcmAudio, read_wav

_STEP_MS = 20
_SILENCE_DIVISOR = 20
"""Sound below this part of the loudest is no speech."""

_MIN_PEAK = 200
"""Nor is what is fainter than this."""

_CLICK_STEPS, _PAUSE_STEPS = 5, 20
"""What is shorter than a click is no speech; what is shorter than a pause ends none."""

_MAX_JITTER_S = 0.3
"""How much sooner than it sounds a piece may come and still be taken for sound at its pace."""

_QUESTION_EVENTS = ("response.create", "input_audio_buffer.commit")


class RecordedQuestion(Struct, frozen=True):
    """
    The end of something that a client said, to which an answer may come.

    Attributes:
        nth: of the client's events, counted from 0: the one in which it ends.
        rest_s: how much of that event's sound comes after it.
        length_s: how long that event's sound is.
        before: the client's event with sound before that one; None where there is none.
        lasts_s: how long the speech was; None where it is an event that ends it.
    """

    event_index: int
    trailing_s: float = 0.0
    audio_s: float = 0.0
    previous_index: int | None = None
    speech_s: float | None = None

    def end_at_s(self, sent_at_s: Sequence[float]) -> float | None:
        """
        When it ended; None where it was not said.

        A microphone has a piece of sound once it is over: so what ends in its middle ended before it was sent. Of what was sent sooner
        than it sounds, the end is when it was sent.

        Args:
            said_at_s: when each of the client's events was said.
        """
        if self.event_index >= len(sent_at_s):
            return None
        at_s = sent_at_s[self.event_index]
        before_s = sent_at_s[self.previous_index] if self.previous_index is not None else 0.0
        is_at_pace = at_s - self.audio_s >= before_s - _MAX_JITTER_S
        return at_s - self.trailing_s if is_at_pace else at_s


class _AudioEvent(Struct, frozen=True):
    """A piece of sound in an event of the client's."""

    event_index: int
    media: MediaReference


def find_questions(lines: Sequence[EventLine], files: Mapping[str, bytes]) -> Sequence[RecordedQuestion]:
    """What the client of a recording said that may be answered, in its order."""
    pieces: list[_AudioEvent] = []
    found: list[RecordedQuestion] = []
    for nth, line in enumerate(line for line in lines if line.direction == IN):
        if line.event.get("type") in _QUESTION_EVENTS or (line.event.get("input") or {}).get("messages"):
            found.append(RecordedQuestion(nth))
        elif (media := _audio_media(line)) is not None:
            pieces.append(_AudioEvent(nth, media))
    lanes = {piece.media.file: read_wav(files[piece.media.file]) for piece in pieces if piece.media.file in files}
    for name, sound in lanes.items():
        found.extend(_speech_ends([piece for piece in pieces if piece.media.file == name], sound))
    return sorted(found, key=lambda ask: ask.event_index)


def speech_intervals(lines: Sequence[EventLine], files: Mapping[str, bytes]) -> Sequence[tuple[float, float]]:
    """When the person of a recording began to speak, in seconds after its beginning, and for how long."""
    said_at_s = [line.at_s for line in lines if line.direction == IN]
    return [
        (max(0.0, ends_s - ask.speech_s), ask.speech_s)
        for ask in find_questions(lines, files)
        if ask.speech_s is not None and (ends_s := ask.end_at_s(said_at_s)) is not None
    ]


def _audio_media(line: EventLine) -> MediaReference | None:
    return next((media for media in find_media(line.event) if media.form != "jpeg" and "/" not in media.file), None)


def _speech_ends(audio_events: Sequence[_AudioEvent], audio: PcmAudio) -> Iterator[RecordedQuestion]:
    """The ends of all that was said in one file."""
    second = SAMPLE_BYTES * audio.rate_hz
    at = 0
    for begins, ends in find_speech(audio):
        while at < len(audio_events) - 1 and audio_events[at].media.offset + audio_events[at].media.bytes < ends:
            at += 1
        media = audio_events[at].media
        rest_s = max(0, media.offset + media.bytes - ends) / second
        before = audio_events[at - 1].event_index if at else None
        yield RecordedQuestion(audio_events[at].event_index, rest_s, media.bytes / second, before, (ends - begins) / second)


def find_speech(audio: PcmAudio) -> Sequence[tuple[int, int]]:
    """Where in the sound someone speaks, from byte to byte; a short pause is part of it."""
    step = size_bytes(_STEP_MS, audio.rate_hz)
    peaks = [peak(audio.pcm[at : at + step]) for at in range(0, len(audio.pcm) - step + 1, step)]
    if not peaks or max(peaks) < _MIN_PEAK:
        return []
    loudest, floor = max(peaks), sorted(peaks)[len(peaks) // 10]
    # A noisy line is never as quiet as a part of its loudest; speech without a pause has no floor of its own.
    threshold = max(loudest / _SILENCE_DIVISOR, min(2 * floor, loudest / 4))
    found: list[tuple[int, int]] = []
    for at in (at for at, level in enumerate(peaks) if level >= threshold):
        if found and at - found[-1][1] < _PAUSE_STEPS:
            found[-1] = (found[-1][0], at + 1)
        else:
            found.append((at, at + 1))
    return [(step * begins, step * ends) for begins, ends in found if ends - begins >= _CLICK_STEPS]
