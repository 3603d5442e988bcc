"""The pictures that the client of a recording sent, and when each is shown in a film."""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from antiphon.audio import SAMPLE_BYTES
from antiphon.runtime.recording.events import IN, MediaReference, find_media
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.timeline import track_rates_hz

_FILM_FORMS = ("jpeg", "png", "webp")
_DATA_URL = re.compile(r"data:image/(?:jpeg|jpg|png|webp);base64,")


class Picture(NamedTuple):
    """An image file, shown from `at_s` on."""

    at_s: float
    content: bytes


class Shot(NamedTuple):
    """
    A part of a film that shows one picture.

    Attributes:
        content: an image file; None for the plain picture that is shown where there is none.
        frames: for how many frames.
    """

    content: bytes | None
    frames: int


def find_pictures(lines: Sequence[EventLine], files: Mapping[str, bytes]) -> list[Picture]:
    """The pictures that the client sent, in order; those of a camera at the times at which it took them."""
    rates_hz = track_rates_hz(lines)
    pictures: list[Picture] = []
    for line in lines:
        if line.direction == IN:
            contents = list(_event_pictures(line, files))
            # Pictures that come with a piece of audio were taken while it was recorded, the last at its end.
            interval_s = _audio_s(line, rates_hz) / len(contents) if contents else 0.0
            pictures += [Picture(line.at_s - interval_s * rest, each) for rest, each in zip(_countdown(contents), contents, strict=True)]
    return pictures


def _countdown(contents: Sequence[bytes]) -> Iterable[int]:
    return range(len(contents) - 1, -1, -1)


def _event_pictures(line: EventLine, files: Mapping[str, bytes]) -> Iterator[bytes]:
    for media in find_media(line.event):
        if media.form in _FILM_FORMS and media.file in files:
            yield files[media.file]
    for text in _texts(line.event):
        if match := _DATA_URL.match(text):
            try:
                yield base64.b64decode(text[match.end() :], validate=True)
            except ValueError:  # also where it is not ASCII
                continue


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from _texts(each)
        case list():
            for each in value:
                yield from _texts(each)
        case _:
            pass


def _audio_s(line: EventLine, rates_hz: Mapping[str, int]) -> float:
    references: Iterable[MediaReference] = find_media(line.event)
    return sum(media.bytes / (SAMPLE_BYTES * rates_hz[media.file]) for media in references if media.file in rates_hz)


def plan_shots(pictures: Sequence[Picture], duration_s: float, frames_per_s: int) -> list[Shot]:
    """The shots of a film that lasts so long: each picture from its time on, and none before the first."""
    total = max(1, round(duration_s * frames_per_s))
    begins = [(0, None), *((min(total, max(0, round(picture.at_s * frames_per_s))), picture.content) for picture in pictures)]
    ends = [*(begin for begin, _ in begins[1:]), total]
    shots = [Shot(content, end - begin) for (begin, content), end in zip(begins, ends, strict=True)]
    return [shot for shot in shots if shot.frames > 0]
