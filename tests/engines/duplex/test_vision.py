"""What a turn-based engine sees in full duplex: pictures, or the text on them."""

import asyncio
from base64 import b64encode
from io import BytesIO

import pytest

from antiphon.engine_api import commands, events, history
from antiphon.engines.duplex.history import MAX_IMAGES
from antiphon.engines.duplex.vision import OCR_SIDE_PX, new_ocr_reader, open_image
from support.engines.duplexes import TURN_END, Puppet, conversed

SEEING = commands.StartDuplex(has_video=True)


class Slow:
    """
    A reader that has read a picture when it is let.

    Attributes:
        asked: the pictures that it was given.
    """

    def __init__(self):
        self.asked = []
        self._reading = []

    def read(self, jpeg, known):
        self.asked.append(jpeg)
        self._reading.append(asyncio.get_running_loop().create_future())
        return self._reading[-1]

    def finish(self, text):
        self._reading.pop().set_result((self.asked[-1], text))

    def fail(self):
        self._reading.pop().set_exception(ValueError("no picture"))


def parts(puppet):
    return puppet.request.history[-1].parts[:-1]


def test_the_newest_pictures_go_with_what_is_said():
    async def scenario(duet):
        for number in range(MAX_IMAGES + 1):
            duet.send(commands.AppendImage(b"%d" % number, max_slices=1 + (number == 1)))
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(lambda id: events.TextDelta(id, "Nice."), lambda id: events.ResponseEnded(id))
        assert duet.take()[1:3] == [
            events.EngineMetrics("duplex_1", {"vision_slices": MAX_IMAGES}),
            events.TextDelta("duplex_1", "Nice."),
        ]
        await duet.hear(TURN_END)
        puppet.turn("turn_2", 1000, 2000)
        assert parts(puppet) == ()

    puppet = Puppet(images=True)
    conversed(puppet, scenario, SEEING)
    urls = [f"data:image/jpeg;base64,{b64encode(b'%d' % number).decode()}" for number in range(1, MAX_IMAGES + 1)]
    seen = puppet.of(commands.Respond)[0].history[0].parts[:-1]
    assert seen == tuple(history.ImagePart(url, detail="high" if at == 0 else "auto") for at, url in enumerate(urls))


def test_where_pictures_are_not_to_come_they_are_dropped():
    async def scenario(duet):
        duet.send(commands.AppendImage(b"jpeg"))
        await duet.hear(TURN_END)
        puppet.turn()

    puppet = Puppet(images=True)
    conversed(puppet, scenario)
    assert parts(puppet) == ()


def test_a_picture_that_comes_while_someone_speaks_is_foreseen():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.deliver([events.SpeechStarted("turn_1", 0)])
        duet.send(commands.AppendImage(b"jpeg"))
        puppet.deliver([events.SpeechStopped("turn_1", 1000)])

    puppet = Puppet(images=True, foresees=True)
    conversed(puppet, scenario, SEEING)
    assert [len(word.request.history[-1].parts) for word in puppet.of(commands.Prepare)] == [1, 2]
    assert len(parts(puppet)) == 1


def test_what_is_written_on_the_newest_picture_is_read_while_someone_speaks():
    async def scenario(duet):
        duet.send(commands.AppendImage(b"one"), commands.AppendImage(b"two"))
        await duet.hear(TURN_END)
        assert slow.asked == []
        puppet.deliver([events.SpeechStarted("turn_1", 0)])
        duet.send(commands.AppendImage(b"three"), commands.AppendImage(b"four"))
        assert slow.asked == [b"two"], "one at a time"
        slow.finish("EXIT")
        await duet.settle()
        assert slow.asked == [b"two", b"four"], "the newest next"
        puppet.deliver([events.SpeechStopped("turn_1", 1000)])

    slow, puppet = Slow(), Puppet(foresees=True)
    duet = conversed(puppet, scenario, SEEING, reader=slow)
    assert duet.ready == [events.DuplexStarted({"video": "read by OCR"})]
    assert parts(puppet) == (history.TextPart("(On the picture is written: EXIT)"),)
    assert puppet.of(commands.Prepare)[-1].request.history[-1].parts[:-1] == parts(puppet)


def test_what_still_stands_there_is_told_once_and_something_new_again():
    async def scenario(duet):
        for number, text in enumerate(("EXIT", "EXIT", "ENTRY")):
            puppet.deliver([events.SpeechStarted(f"turn_{number}", 0)])
            duet.send(commands.AppendImage(text.encode()))
            slow.finish(text)
            await duet.settle()
            puppet.deliver([events.SpeechStopped(f"turn_{number}", 0)])
            told.append([part.text for part in parts(puppet)])

    slow, puppet, told = Slow(), Puppet(), []
    conversed(puppet, scenario, SEEING, reader=slow)
    assert told == [["(On the picture is written: EXIT)"], [], ["(On the picture is written: ENTRY)"]]


def test_a_picture_that_can_not_be_read_has_nothing_written_on_it():
    async def scenario(duet):
        puppet.deliver([events.SpeechStarted("turn_1", 0)])
        duet.send(commands.AppendImage(b"one"))
        slow.fail()
        await duet.settle()
        duet.send(commands.AppendImage(b"two"))
        slow.finish("EXIT")
        await duet.settle()
        puppet.deliver([events.SpeechStopped("turn_1", 0)])

    slow, puppet = Slow(), Puppet()
    conversed(puppet, scenario, SEEING, reader=slow)
    assert len(parts(puppet)) == 1


# With what reads


@pytest.fixture
def reading():
    """Reads a picture, as in a conversation."""
    made = new_ocr_reader()
    if made is None:
        pytest.skip("rapidocr is not installed")

    async def read(jpeg, known=(b"", "")):
        return await made.read(jpeg, known)

    yield lambda *args: asyncio.run(read(*args))
    made.stop()


def jpeg(text="", size=(640, 480), format="JPEG"):
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415 - it comes with what reads

    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((60, 180), text, font=ImageFont.load_default(60), fill="black")
    file = BytesIO()
    image.save(file, format)
    return file.getvalue()


def test_writing_is_read(reading):
    look, text = reading(jpeg("EXIT 42"))
    assert text == "EXIT 42"
    assert reading(jpeg(""), (b"", ""))[1] == ""
    assert reading(jpeg("EXIT 42"), (look, "as before")) == (look, "as before"), "what looks the same is not read again"


def test_what_is_no_picture_or_a_bomb_is_not_read(reading):
    for bytes_ in (b"", b"\xff\xd8\xff", b"GIF89a", jpeg("EXIT")[:200], jpeg("EXIT", format="PNG"), jpeg(size=(8000, 8000))):
        assert reading(bytes_)[1] == ""


@pytest.mark.usefixtures("reading")
def test_a_large_picture_is_read_small():
    assert max(open_image(jpeg("EXIT", (4000, 3000))).size) <= OCR_SIDE_PX
