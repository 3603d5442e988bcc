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

from antiphon.engine_api import commands, history
from antiphon.engines.duplex.history import MAX_IMAGES

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_TEXT_CHARS = 600
"""The most characters that are told of a picture."""

MAX_PIXELS = 40_000_000
"""Of a picture that is opened at all: what cameras make, and no bomb."""

OCR_SIDE_PX = 960
"""The longest side of a picture as it is read; twice that takes three times as long."""

_THUMBNAIL_SIDE_PX = 24
_SAME_IMAGE_DIFFERENCE = 4.0
"""Mean difference of grey levels, of 255, below which two pictures are taken for one."""


class Vision(Protocol):
    """
    One conversation's sight.

    Attributes:
        note: what becomes of pictures, for the client.
    """

    note: str

    def append_image(self, command: commands.AppendImage) -> None:
        """The client sees that now."""

    def set_speaking(self, *, is_speaking: bool) -> None:
        """Someone begins to speak, or is done."""

    def parts(self) -> Sequence[history.HistoryPart]:
        """What was seen since the last `told`, for the model."""

    def mark_sent(self) -> None:
        """The model was told."""


class NoVision:
    """Pictures are dropped."""

    note = "not seen"

    def append_image(self, command: commands.AppendImage) -> None:
        """Drop it."""

    def set_speaking(self, *, is_speaking: bool) -> None:
        """It is of no use."""

    def parts(self) -> Sequence[history.HistoryPart]:
        """Nothing was seen."""
        return ()

    def mark_sent(self) -> None:
        """There was nothing."""


class ImageVision(NoVision):
    """The engine sees pictures itself: the newest few go with what is said."""

    note = "seen"

    def __init__(self) -> None:
        self._images: deque[history.ImagePart] = deque(maxlen=MAX_IMAGES)

    def append_image(self, command: commands.AppendImage) -> None:
        """Keep it."""
        url = f"data:image/jpeg;base64,{b64encode(command.jpeg).decode()}"
        self._images.append(history.ImagePart(url, detail="high" if command.max_slices > 1 else "auto"))

    def parts(self) -> Sequence[history.HistoryPart]:
        """The pictures."""
        return tuple(self._images)

    def mark_sent(self) -> None:
        """The next turn has pictures of its own."""
        self._images.clear()


class OcrReader:
    """
    Reads what is written on pictures; one for the process, as it loads a model and takes a core.

    Whoever made it stops it.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._ocr_engine: Any = None

    def read(self, jpeg: bytes, previous: tuple[bytes, str]) -> "asyncio.Future[tuple[bytes, str]]":
        """
        What is written on a picture.

        Args:
            known: what this gave for the picture before.

        Returns:
            How the picture looks, and its lines; no lines where there are none, or it is no picture.
        """
        return asyncio.get_running_loop().run_in_executor(self._executor, self._recognize, jpeg, previous)

    def stop(self) -> None:
        """Read no more; idempotent."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _recognize(self, jpeg: bytes, previous: tuple[bytes, str]) -> tuple[bytes, str]:
        image = open_image(jpeg)
        if image is None:
            return b"", ""
        glance = image.convert("L").resize((_THUMBNAIL_SIDE_PX, _THUMBNAIL_SIDE_PX)).tobytes()
        if previous[0] and _is_same_image(glance, previous[0]):
            return previous
        found = self._load_engine()(image)
        return glance, "\n".join(found.txts or ())[:MAX_TEXT_CHARS]

    def _load_engine(self) -> Any:
        if self._ocr_engine is None:
            from rapidocr import RapidOCR  # noqa: PLC0415 - it loads a model, and most servers never read a picture

            self._ocr_engine = RapidOCR(params={"EngineConfig.onnxruntime.intra_op_num_threads": 1, "Global.log_level": "error"})
        return self._ocr_engine


def new_ocr_reader() -> OcrReader | None:
    """Reads pictures, where what that takes is installed."""
    return OcrReader() if importlib.util.find_spec("rapidocr") is not None else None


def open_image(jpeg: bytes) -> "Image | None":
    """The picture, no larger than it is read; None where it is none, or too large to be opened."""
    from PIL import Image  # noqa: PLC0415 - as above

    try:
        with Image.open(BytesIO(jpeg), formats=["JPEG"]) as image:
            if image.width * image.height > MAX_PIXELS:
                return None
            image.draft("RGB", (OCR_SIDE_PX, OCR_SIDE_PX))  # decoded at half the size or less, where that is enough
            small = image.convert("RGB")
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for what is no JPEG
        return None
    small.thumbnail((OCR_SIDE_PX, OCR_SIDE_PX))
    return small


def _is_same_image(one: bytes, other: bytes) -> bool:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) < _SAME_IMAGE_DIFFERENCE * len(one)


class OcrVision(NoVision):
    """
    What is written on pictures is told in words, once for as long as it stands there.

    Args:
        changed: called when `parts` are others.
    """

    note = "read by OCR"

    def __init__(self, ocr_reader: OcrReader, on_change: Callable[[], None]) -> None:
        self._ocr_reader = ocr_reader
        self._on_change = on_change
        self._newest_jpeg: bytes | None = None
        self._last_result = b"", ""
        self._sent_text = ""
        self._is_speaking = False
        self._read_future: asyncio.Future[tuple[bytes, str]] | None = None

    def append_image(self, command: commands.AppendImage) -> None:
        """It is the one to read."""
        self._newest_jpeg = command.jpeg
        self._read_next()

    def set_speaking(self, *, is_speaking: bool) -> None:
        """Read while someone speaks."""
        self._is_speaking = is_speaking
        self._read_next()

    def parts(self) -> Sequence[history.HistoryPart]:
        """What is written there now, where that is something else than before."""
        text = self._last_result[1]
        return (history.TextPart(f"(On the picture is written: {text})"),) if text and text != self._sent_text else ()

    def mark_sent(self) -> None:
        """It is known now."""
        self._sent_text = self._last_result[1]

    def _read_next(self) -> None:
        jpeg = self._newest_jpeg
        if self._is_speaking and jpeg is not None and self._read_future is None:
            self._newest_jpeg = None
            self._read_future = self._ocr_reader.read(jpeg, self._last_result)
            self._read_future.add_done_callback(self._on_read)

    def _on_read(self, future: "asyncio.Future[tuple[bytes, str]]") -> None:
        self._read_future = None
        if future.cancelled() or future.exception() is not None:  # what can't be read has nothing written on it
            return
        before, self._last_result = self._last_result, future.result()
        if before[1] != self._last_result[1]:
            self._on_change()
        self._read_next()
