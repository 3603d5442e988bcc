"""
When the person finished speaking, in a recording and in its replay.

In full duplex no event says so, and where a server detects it, its delay is part of what is measured. So it is read
from the audio, by its loudness, which is the same in both sessions.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, peak, size_bytes
from antiphon.runtime.recording.events import IN, MediaReference, find_media
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.mixing import PcmAudio, read_wav
from antiphon.runtime.recording.timeline import MAX_JITTER_S

_STEP_MS = 20
_SILENCE_DIVISOR = 20
"""Audio quieter than the peak divided by this is no speech."""

_MIN_PEAK = 200
"""Audio whose peak is below this has no speech."""

_CLICK_STEPS, _PAUSE_STEPS = 5, 20
"""Sounds shorter than a click are no speech; gaps shorter than a pause don't end it."""

_QUESTION_EVENTS = ("response.create", "input_audio_buffer.commit")


class RecordedQuestion(Struct, frozen=True):
    """
    The end of something that a client said and that may be answered.

    Attributes:
        event_index: the client event in which it ends, counted from 0.
        trailing_s: how much of that event's audio comes after the end.
        audio_s: the duration of that event's audio.
        previous_index: the client event with the audio before that one; None if there is none.
        speech_s: the duration of the speech; None where an event such as `response.create` is the end.
    """

    event_index: int
    trailing_s: float = 0.0
    audio_s: float = 0.0
    previous_index: int | None = None
    speech_s: float | None = None

    def end_at_s(self, sent_at_s: Sequence[float]) -> float | None:
        """
        When it ended; None where the event was not sent.

        A microphone has a chunk of audio once it is over, so speech that ends within a chunk ended before the chunk was
        sent. For audio that is sent faster than it plays, the end is when it was sent.

        Args:
            sent_at_s: when each of the client's events was sent.
        """
        if self.event_index >= len(sent_at_s):
            return None
        at_s = sent_at_s[self.event_index]
        before_s = sent_at_s[self.previous_index] if self.previous_index is not None else 0.0
        is_at_pace = at_s - self.audio_s >= before_s - MAX_JITTER_S
        return at_s - self.trailing_s if is_at_pace else at_s


class _AudioEvent(Struct, frozen=True):
    """Audio in a client event."""

    event_index: int
    media: MediaReference


def find_questions(lines: Sequence[EventLine], files: Mapping[str, bytes]) -> Sequence[RecordedQuestion]:
    """What the client of a recording said and that may be answered, in order."""
    audio_events: list[_AudioEvent] = []
    questions: list[RecordedQuestion] = []
    for index, line in enumerate(line for line in lines if line.direction == IN):
        if line.fields.get("type") in _QUESTION_EVENTS or line.fields.get("input", {}).get("messages"):
            questions.append(RecordedQuestion(index))
        elif (media := _audio_media(line)) is not None:
            audio_events.append(_AudioEvent(index, media))
    tracks = {event.media.file: read_wav(files[event.media.file]) for event in audio_events if event.media.file in files}
    for name, track in tracks.items():
        questions.extend(_speech_ends([event for event in audio_events if event.media.file == name], track))
    return sorted(questions, key=lambda question: question.event_index)


def speech_intervals(lines: Sequence[EventLine], files: Mapping[str, bytes]) -> Sequence[tuple[float, float]]:
    """When the person of a recording spoke: seconds after its start, and the duration, of each speech."""
    sent_at_s = [line.at_s for line in lines if line.direction == IN]
    return [
        (max(0.0, end_s - question.speech_s), question.speech_s)
        for question in find_questions(lines, files)
        if question.speech_s is not None and (end_s := question.end_at_s(sent_at_s)) is not None
    ]


def _audio_media(line: EventLine) -> MediaReference | None:
    return next((media for media in find_media(line.event) if not media.is_image and "/" not in media.file), None)


def _speech_ends(audio_events: Sequence[_AudioEvent], audio: PcmAudio) -> Iterator[RecordedQuestion]:
    """The ends of all speech in one file."""
    bytes_per_s = SAMPLE_BYTES * audio.rate_hz
    index = 0
    for begin, end in find_speech(audio):
        while index < len(audio_events) - 1 and audio_events[index].media.offset + audio_events[index].media.bytes < end:
            index += 1
        media = audio_events[index].media
        yield RecordedQuestion(
            event_index=audio_events[index].event_index,
            trailing_s=max(0, media.offset + media.bytes - end) / bytes_per_s,
            audio_s=media.bytes / bytes_per_s,
            previous_index=audio_events[index - 1].event_index if index else None,
            speech_s=(end - begin) / bytes_per_s,
        )


def find_speech(audio: PcmAudio) -> Sequence[tuple[int, int]]:
    """The byte ranges of the audio in which someone speaks, short pauses included."""
    step = size_bytes(_STEP_MS, audio.rate_hz)
    peaks = [peak(audio.pcm[offset : offset + step]) for offset in range(0, len(audio.pcm) - step + 1, step)]
    if not peaks or max(peaks) < _MIN_PEAK:
        return []
    loudest, floor = max(peaks), sorted(peaks)[len(peaks) // 10]
    # The noise floor matters on a noisy line, which never gets quiet; speech without pauses has no noise floor, hence
    # the limit.
    threshold = max(loudest / _SILENCE_DIVISOR, min(2 * floor, loudest / 4))
    spans: list[tuple[int, int]] = []
    for index in (index for index, level in enumerate(peaks) if level >= threshold):
        if spans and index - spans[-1][1] < _PAUSE_STEPS:
            spans[-1] = (spans[-1][0], index + 1)
        else:
            spans.append((index, index + 1))
    return [(step * begin, step * end) for begin, end in spans if end - begin >= _CLICK_STEPS]
