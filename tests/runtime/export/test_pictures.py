"""Which pictures a film shows, and when."""

import base64

import pytest

from antiphon.runtime.export.pictures import Picture, Shot, find_pictures, plan_shots
from antiphon.runtime.recording.files import EventLine


def appended(at_s, *names, audio_ms=0):
    size = audio_ms * 32
    audio = {"audio": {"$media": "in.wav", "offset": 0, "bytes": size, "form": "pcm"}} if audio_ms else {}
    frames = [{"$media": name, "bytes": 1, "form": "jpeg"} for name in names]
    return EventLine(1, at_s, "in", {"type": "input.append", "input": {**audio, "video_frames": frames}})


CREATED = EventLine(0, 0.0, "out", {"type": "session.created", "session_id": "sess_1"})
FILES = {f"frames/{number}.jpg": bytes((number,)) for number in range(4)}


def test_a_picture_is_seen_from_when_it_was_sent():
    lines = [CREATED, appended(1.0, "frames/1.jpg", audio_ms=1000), appended(2.0, "frames/2.jpg", audio_ms=1000)]
    assert find_pictures(lines, FILES) == [Picture(1.0, b"\x01"), Picture(2.0, b"\x02")]


def test_several_pictures_of_one_second_come_one_after_the_other():
    lines = [CREATED, appended(2.0, "frames/0.jpg", "frames/1.jpg", "frames/2.jpg", "frames/3.jpg", audio_ms=1000)]
    assert [picture.at_s for picture in find_pictures(lines, FILES)] == [1.25, 1.5, 1.75, 2.0]


def test_pictures_of_a_message_are_seen_too():
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "See?"}]}
    lines = [EventLine(1, 3.0, "in", {"type": "conversation.item.create", "item": item})]
    assert find_pictures(lines, {}) == [Picture(3.0, b"\x89PNG")]


def test_of_pictures_that_are_files_those_are_seen_that_a_film_can_show():
    parts = [{"type": "image", "data": {"$media": f"frames/1.{form}", "bytes": 1, "form": form}} for form in ("jpeg", "png", "webp", "gif")]
    asked = EventLine(1, 3.0, "in", {"type": "input.append", "input": {"messages": [{"role": "user", "content": parts}]}})
    files = {f"frames/1.{form}": form.encode() for form in ("jpeg", "png", "webp", "gif")}
    assert find_pictures([CREATED, asked], files) == [Picture(3.0, form) for form in (b"jpeg", b"png", b"webp")]


@pytest.mark.parametrize("text", ["?", "é"])
def test_what_is_missing_or_no_picture_is_left_out(text):
    item = {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{text}"}]}
    lines = [CREATED, appended(1.0, "frames/9.jpg"), EventLine(1, 3.0, "in", {"type": "conversation.item.create", "item": item})]
    assert find_pictures(lines, FILES) == []


@pytest.mark.parametrize(
    ("at_s", "shots"),
    [
        ((), [(None, 50)]),
        ((0.0,), [(b"0", 50)]),
        ((1.24, 3.0), [(None, 12), (b"0", 18), (b"1", 20)]),
        ((1.0, 1.01), [(None, 10), (b"1", 40)]),
        ((1.0, 9.0), [(None, 10), (b"0", 40)]),
    ],
)
def test_each_picture_stays_until_the_next(at_s, shots):
    pictures = [Picture(each, str(number).encode()) for number, each in enumerate(at_s)]
    assert plan_shots(pictures, 5.0, 10) == [Shot(*each) for each in shots]
