"""
What becomes of pictures that an engine of turns is shown: it sees them where it can, else what is written on them is read to it.

Reading takes most of a second on one core, so one picture at a time is read in the whole process, the newest, and only while
someone speaks who may ask about it. A picture that looks like the one read before is not read again.
"""

import asyncio
import importlib.util
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.engine_api import commands, history as turns
from antiphon.engines.duplex.history import MOST_PICTURES

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_TEXT = 600
"""The most characters that are told of a picture."""

MOST_PIXELS = 40_000_000
"""Of a picture that is opened at all: what cameras make, and no bomb."""

READ_SIDE = 960
"""The longest side of a picture as it is read; twice that takes three times as long."""

_GLANCE_SIDE = 24
_ALIKE = 4.0
"""Mean difference of grey levels, of 255, below which two pictures are taken for one."""


class Sight(Protocol):
    """
    One conversation's sight.

    Attributes:
        note: what becomes of pictures, for the client.
    """

    note: str

    def see(self, word: commands.See) -> None:
        """The client sees that now."""

    def attend(self, *, is_spoken_to: bool) -> None:
        """Someone begins to speak, or is done."""

    def parts(self) -> Sequence[turns.Part]:
        """What was seen since the last `told`, for the model."""

    def told(self) -> None:
        """The model was told."""


class Blind:
    """Pictures are dropped."""

    note = "not seen"

    def see(self, word: commands.See) -> None:
        """Drop it."""

    def attend(self, *, is_spoken_to: bool) -> None:
        """It is of no use."""

    def parts(self) -> Sequence[turns.Part]:
        """Nothing was seen."""
        return ()

    def told(self) -> None:
        """There was nothing."""


class Seeing(Blind):
    """The engine sees pictures itself: the newest few go with what is said."""

    note = "seen"

    def __init__(self) -> None:
        self._pictures: deque[turns.ImagePart] = deque(maxlen=MOST_PICTURES)

    def see(self, word: commands.See) -> None:
        """Keep it."""
        url = f"data:image/jpeg;base64,{b64encode(word.jpeg).decode()}"
        self._pictures.append(turns.ImagePart(url, detail="high" if word.slices > 1 else "auto"))

    def parts(self) -> Sequence[turns.Part]:
        """The pictures."""
        return tuple(self._pictures)

    def told(self) -> None:
        """The next turn has pictures of its own."""
        self._pictures.clear()


class Reader:
    """
    Reads what is written on pictures; one for the process, as it loads a model and takes a core.

    Whoever made it stops it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._engine: Any = None

    def read(self, jpeg: bytes, known: tuple[bytes, str]) -> "asyncio.Future[tuple[bytes, str]]":
        """
        What is written on a picture.

        Args:
            known: what this gave for the picture before.

        Returns:
            How the picture looks, and its lines; no lines where there are none, or it is no picture.
        """
        return asyncio.get_running_loop().run_in_executor(self._thread, self._read, jpeg, known)

    def stop(self) -> None:
        """Read no more; idempotent."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, jpeg: bytes, known: tuple[bytes, str]) -> tuple[bytes, str]:
        image = opened(jpeg)
        if image is None:
            return b"", ""
        glance = image.convert("L").resize((_GLANCE_SIDE, _GLANCE_SIDE)).tobytes()
        if known[0] and _are_alike(glance, known[0]):
            return known
        found = self._loaded()(image)
        return glance, "\n".join(found.txts or ())[:MOST_TEXT]

    def _loaded(self) -> Any:
        if self._engine is None:
            from rapidocr import RapidOCR  # noqa: PLC0415 - it loads a model, and most servers never read a picture

            self._engine = RapidOCR(params={"EngineConfig.onnxruntime.intra_op_num_threads": 1, "Global.log_level": "error"})
        return self._engine


def reader() -> Reader | None:
    """Reads pictures, where what that takes is installed."""
    return Reader() if importlib.util.find_spec("rapidocr") is not None else None


def opened(jpeg: bytes) -> "Image | None":
    """The picture, no larger than it is read; None where it is none, or too large to be opened."""
    from PIL import Image  # noqa: PLC0415 - as above

    try:
        with Image.open(BytesIO(jpeg), formats=["JPEG"]) as image:
            if image.width * image.height > MOST_PIXELS:
                return None
            image.draft("RGB", (READ_SIDE, READ_SIDE))  # decoded at half the size or less, where that is enough
            small = image.convert("RGB")
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for what is no JPEG
        return None
    small.thumbnail((READ_SIDE, READ_SIDE))
    return small


def _are_alike(one: bytes, other: bytes) -> bool:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) < _ALIKE * len(one)


class Reading(Blind):
    """
    What is written on pictures is told in words, once for as long as it stands there.

    Args:
        changed: called when `parts` are others.
    """

    note = "read by OCR"

    def __init__(self, reader: Reader, changed: Callable[[], None]) -> None:
        self._reader = reader
        self._changed = changed
        self._newest: bytes | None = None
        self._known = b"", ""
        self._told = ""
        self._is_wanted = False
        self._reading: asyncio.Future[tuple[bytes, str]] | None = None

    def see(self, word: commands.See) -> None:
        """It is the one to read."""
        self._newest = word.jpeg
        self._go_on()

    def attend(self, *, is_spoken_to: bool) -> None:
        """Read while someone speaks."""
        self._is_wanted = is_spoken_to
        self._go_on()

    def parts(self) -> Sequence[turns.Part]:
        """What is written there now, where that is something else than before."""
        text = self._known[1]
        return (turns.TextPart(f"(On the picture is written: {text})"),) if text and text != self._told else ()

    def told(self) -> None:
        """It is known now."""
        self._told = self._known[1]

    def _go_on(self) -> None:
        jpeg = self._newest
        if self._is_wanted and jpeg is not None and self._reading is None:
            self._newest = None
            self._reading = self._reader.read(jpeg, self._known)
            self._reading.add_done_callback(self._was_read)

    def _was_read(self, reading: "asyncio.Future[tuple[bytes, str]]") -> None:
        self._reading = None
        if reading.cancelled() or reading.exception() is not None:  # what can't be read has nothing written on it
            return
        before, self._known = self._known, reading.result()
        if before[1] != self._known[1]:
            self._changed()
        self._go_on()
