"""
When a person had finished speaking, in a recording and wherever it is said again.

Nobody says so in full duplex, and a server that listens for it says so when it has noticed, which is part of what is to be measured. So it
is read from the sound: by its loudness, and the same in both sessions, as the sound is the same.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, bytes_of, peak
from antiphon.runtime.recording.events import IN, Media, media_in
from antiphon.runtime.recording.files import Line
from antiphon.runtime.recording.mixing import Sound, sound_of

_STEP_MS = 20
_QUIET_PART = 20
"""Sound below this part of the loudest is no speech."""

_LEAST_PEAK = 200
"""Nor is what is fainter than this."""

_CLICK_STEPS, _PAUSE_STEPS = 5, 20
"""What is shorter than a click is no speech; what is shorter than a pause ends none."""

_JITTER_S = 0.3
"""How much sooner than it sounds a piece may come and still be taken for sound at its pace."""

_ASKING = ("response.create", "input_audio_buffer.commit")


class Ask(Struct, frozen=True):
    """
    The end of something that a client said, to which an answer may come.

    Attributes:
        nth: of the client's events, counted from 0: the one in which it ends.
        rest_s: how much of that event's sound comes after it.
        length_s: how long that event's sound is.
        before: the client's event with sound before that one; None where there is none.
        lasts_s: how long the speech was; None where it is an event that ends it.
    """

    nth: int
    rest_s: float = 0.0
    length_s: float = 0.0
    before: int | None = None
    lasts_s: float | None = None

    def ended_at_s(self, said_at_s: Sequence[float]) -> float | None:
        """
        When it ended; None where it was not said.

        A microphone has a piece of sound once it is over: so what ends in its middle ended before it was sent. Of what was sent sooner
        than it sounds, the end is when it was sent.

        Args:
            said_at_s: when each of the client's events was said.
        """
        if self.nth >= len(said_at_s):
            return None
        at_s = said_at_s[self.nth]
        before_s = said_at_s[self.before] if self.before is not None else 0.0
        is_at_pace = at_s - self.length_s >= before_s - _JITTER_S
        return at_s - self.rest_s if is_at_pace else at_s


class _Piece(Struct, frozen=True):
    """A piece of sound in an event of the client's."""

    nth: int
    media: Media


def asks_of(lines: Sequence[Line], files: Mapping[str, bytes]) -> Sequence[Ask]:
    """What the client of a recording said that may be answered, in its order."""
    pieces: list[_Piece] = []
    found: list[Ask] = []
    for nth, line in enumerate(line for line in lines if line.direction == IN):
        if line.event.get("type") in _ASKING or (line.event.get("input") or {}).get("messages"):
            found.append(Ask(nth))
        elif (media := _said_aloud(line)) is not None:
            pieces.append(_Piece(nth, media))
    lanes = {piece.media.file: sound_of(files[piece.media.file]) for piece in pieces if piece.media.file in files}
    for name, sound in lanes.items():
        found.extend(_ends([piece for piece in pieces if piece.media.file == name], sound))
    return sorted(found, key=lambda ask: ask.nth)


def spoken(lines: Sequence[Line], files: Mapping[str, bytes]) -> Sequence[tuple[float, float]]:
    """When the person of a recording began to speak, in seconds after its beginning, and for how long."""
    said_at_s = [line.at_s for line in lines if line.direction == IN]
    return [
        (max(0.0, ends_s - ask.lasts_s), ask.lasts_s)
        for ask in asks_of(lines, files)
        if ask.lasts_s is not None and (ends_s := ask.ended_at_s(said_at_s)) is not None
    ]


def _said_aloud(line: Line) -> Media | None:
    return next((media for media in media_in(line.event) if media.form != "jpeg" and "/" not in media.file), None)


def _ends(pieces: Sequence[_Piece], sound: Sound) -> Iterator[Ask]:
    """The ends of all that was said in one file."""
    second = SAMPLE_BYTES * sound.rate_hz
    at = 0
    for begins, ends in stretches(sound):
        while at < len(pieces) - 1 and pieces[at].media.offset + pieces[at].media.bytes < ends:
            at += 1
        media = pieces[at].media
        rest_s = max(0, media.offset + media.bytes - ends) / second
        before = pieces[at - 1].nth if at else None
        yield Ask(pieces[at].nth, rest_s, media.bytes / second, before, (ends - begins) / second)


def stretches(sound: Sound) -> Sequence[tuple[int, int]]:
    """Where in the sound someone speaks, from byte to byte; a short pause is part of it."""
    step = bytes_of(_STEP_MS, sound.rate_hz)
    peaks = [peak(sound.pcm[at : at + step]) for at in range(0, len(sound.pcm) - step + 1, step)]
    if not peaks or max(peaks) < _LEAST_PEAK:
        return []
    loudest, floor = max(peaks), sorted(peaks)[len(peaks) // 10]
    # A noisy line is never as quiet as a part of its loudest; speech without a pause has no floor of its own.
    threshold = max(loudest / _QUIET_PART, min(2 * floor, loudest / 4))
    found: list[tuple[int, int]] = []
    for at in (at for at, level in enumerate(peaks) if level >= threshold):
        if found and at - found[-1][1] < _PAUSE_STEPS:
            found[-1] = (found[-1][0], at + 1)
        else:
            found.append((at, at + 1))
    return [(step * begins, step * ends) for begins, ends in found if ends - begins >= _CLICK_STEPS]
