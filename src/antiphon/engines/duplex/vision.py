"""
Images for a turn-taking engine: it gets them if it can see, else the text that OCR finds in them.

OCR takes most of a second on one core, so the process reads one image at a time, the newest, and only while someone
speaks who may ask about it. An image that looks like the one before is not read again.
"""

import asyncio
import importlib.util
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import TYPE_CHECKING, Protocol

from antiphon.engine_api import commands, history
from antiphon.engines.duplex.history import MAX_IMAGES

if TYPE_CHECKING:
    from PIL.Image import Image
    from rapidocr import RapidOCR

MAX_TEXT_CHARS = 600
"""How much text of an image the engine gets."""

MAX_PIXELS = 40_000_000
"""Larger images are not opened: enough for cameras, and no decompression bombs."""

OCR_SIDE_PX = 960
"""The longest side of an image as OCR gets it; twice that takes three times as long."""

_THUMBNAIL_SIDE_PX = 24
_SAME_IMAGE_DIFFERENCE = 4.0
"""Mean difference of grey levels, of 255, below which two images count as the same."""


class Vision(Protocol):
    """
    What one conversation does with images.

    Attributes:
        note: what happens to images, for the client.
    """

    note: str

    def append_image(self, command: commands.AppendImage) -> None:
        """Take the client's newest image."""

    def set_speaking(self, *, is_speaking: bool) -> None:
        """The person begins to speak, or stops."""

    def parts(self) -> Sequence[history.HistoryPart]:
        """What was seen since the last `mark_sent`, for the model."""

    def mark_sent(self) -> None:
        """The model got `parts`."""


class NoVision:
    """Images are dropped."""

    note = "not seen"

    def append_image(self, command: commands.AppendImage) -> None:
        pass

    def set_speaking(self, *, is_speaking: bool) -> None:
        pass

    def parts(self) -> Sequence[history.HistoryPart]:
        return ()

    def mark_sent(self) -> None:
        pass


class ImageVision(NoVision):
    """The engine can see: the newest few images go with the turn."""

    note = "seen"

    def __init__(self) -> None:
        self._images: deque[history.ImagePart] = deque(maxlen=MAX_IMAGES)

    def append_image(self, command: commands.AppendImage) -> None:
        url = f"data:image/jpeg;base64,{b64encode(command.jpeg).decode()}"
        self._images.append(history.ImagePart(url, detail="high" if command.max_slices > 1 else "auto"))

    def parts(self) -> Sequence[history.HistoryPart]:
        return tuple(self._images)

    def mark_sent(self) -> None:
        self._images.clear()


class OcrReader:
    """
    Reads text in images; one for the process, as it loads a model and takes a core.

    The caller stops it.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._ocr_engine: RapidOCR | None = None

    def read(self, jpeg: bytes, previous: tuple[bytes, str]) -> "asyncio.Future[tuple[bytes, str]]":
        """
        The text in an image.

        Args:
            previous: the result for the image before.

        Returns:
            A thumbnail to compare with, and the lines of text; no text if there is none, or it is no image.
        """
        return asyncio.get_running_loop().run_in_executor(self._executor, self._recognize, jpeg, previous)

    def stop(self) -> None:
        """Stop reading; idempotent."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _recognize(self, jpeg: bytes, previous: tuple[bytes, str]) -> tuple[bytes, str]:
        image = open_image(jpeg)
        if image is None:
            return b"", ""
        thumbnail = image.convert("L").resize((_THUMBNAIL_SIDE_PX, _THUMBNAIL_SIDE_PX)).tobytes()
        if previous[0] and _is_same_image(thumbnail, previous[0]):
            return previous
        result = self._load_engine()(image)
        return thumbnail, "\n".join(result.txts or ())[:MAX_TEXT_CHARS]

    def _load_engine(self) -> "RapidOCR":
        if self._ocr_engine is None:
            from rapidocr import RapidOCR  # noqa: PLC0415 - it loads a model, and most servers never read an image

            self._ocr_engine = RapidOCR(params={"EngineConfig.onnxruntime.intra_op_num_threads": 1, "Global.log_level": "error"})
        return self._ocr_engine


def new_ocr_reader() -> OcrReader | None:
    """A reader; None if `rapidocr` is not installed."""
    return OcrReader() if importlib.util.find_spec("rapidocr") is not None else None


def open_image(jpeg: bytes) -> "Image | None":
    """The image, at most at the size of OCR; None if it is no JPEG, or too large to open."""
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
    The engine gets the text in images, once for as long as it stays the same.

    Args:
        on_change: called when `parts` changed.
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
        self._newest_jpeg = command.jpeg
        self._read_next()

    def set_speaking(self, *, is_speaking: bool) -> None:
        self._is_speaking = is_speaking
        self._read_next()

    def parts(self) -> Sequence[history.HistoryPart]:
        text = self._last_result[1]
        return (history.TextPart(f"(On the picture is written: {text})"),) if text and text != self._sent_text else ()

    def mark_sent(self) -> None:
        self._sent_text = self._last_result[1]

    def _read_next(self) -> None:
        jpeg = self._newest_jpeg
        if self._is_speaking and jpeg is not None and self._read_future is None:
            self._newest_jpeg = None
            self._read_future = self._ocr_reader.read(jpeg, self._last_result)
            self._read_future.add_done_callback(self._on_read)

    def _on_read(self, future: "asyncio.Future[tuple[bytes, str]]") -> None:
        self._read_future = None
        if future.cancelled() or future.exception() is not None:  # an image that can't be read has no text
            return
        before, self._last_result = self._last_result, future.result()
        if before[1] != self._last_result[1]:
            self._on_change()
        self._read_next()
