"""The pictures that an edit starts from: those of the conversation, and what the tool made earlier."""

import binascii
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence

from antiphon.engine_api.engine import Fetch
from antiphon.errors import ClientError, file_too_large
from antiphon.offload import offload
from antiphon.tools.image_generation.formats import image_format
from antiphon.wire.codec.types import Maybe
from antiphon.wire.responses import items
from antiphon.wire.responses.hosted_calls import ImageGenerationCall
from antiphon.wire.responses.parts import InputImage

MAX_PICTURES = 16
"""The most pictures of an edit: as many as `POST /v1/images/edits` takes."""

MAX_PICTURE_BYTES = 20 << 20
MAX_TOTAL_BYTES = 64 << 20

EDITABLE_FORMATS = ("png", "webp", "jpeg")

ReadFile = Callable[[str, str, str], Awaitable[bytes]]
"""
Reads an uploaded file: takes the tenant, its id and the field that names it. Raises `errors.ClientError` if there is
none, or it is larger than `MAX_PICTURE_BYTES`.
"""

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


class PictureSources:
    """
    Where pictures come from.

    Args:
        tenant: whose files they may be.
        read_file: reads uploaded files.
        fetch: fetches what URLs name.
    """

    def __init__(self, tenant: str, read_file: ReadFile, fetch: Fetch) -> None:
        self._tenant = tenant
        self._read_file = read_file
        self._fetch = fetch

    async def load(self, picture: InputImage | str, param: str) -> bytes:
        """
        A picture.

        Args:
            picture: an image of a message, or base64.
            param: the field that has it, for errors.

        Raises:
            ClientError: it can't be read, or is too large, or none that can be changed.
        """
        if isinstance(picture, str):
            content = await decode_picture(picture, param)
        else:
            content = await self.load_named(picture.file_id, picture.image_url, param)
        if image_format(content) not in EDITABLE_FORMATS:
            raise _wrong_format(param)
        return content

    async def load_named(self, file_id: Maybe[str], url: Maybe[str], param: str) -> bytes:
        """
        What a file id or a URL names; one of both is given.

        Raises:
            ClientError: as `load`.
        """
        if isinstance(file_id, str):
            content = await self._read_file(self._tenant, file_id, f"{param}.file_id")
        elif not isinstance(url, str):
            raise ClientError(f"Invalid '{param}': expected `file_id` or `image_url`.", code="invalid_value", param=param)
        elif url[:8].lower().startswith(("http://", "https://")):
            content, _ = await self._fetch(url, f"{param}.image_url", ("image/",))
        else:
            return await decode_picture(url, f"{param}.image_url")
        if len(content) > MAX_PICTURE_BYTES:
            raise file_too_large(param, MAX_PICTURE_BYTES)
        return content


def pictures_of(conversation: Sequence[items.Item], results: Sequence[str]) -> list[InputImage | str]:
    """
    The pictures in a conversation, oldest first, the newest `MAX_PICTURES` of them.

    Args:
        results: in base64, of calls in the response itself; those that are in the conversation too count once.
    """
    known_results = set(results)
    earlier = [each for each in _pictures_in(conversation) if not isinstance(each, str) or each not in known_results]
    return [*earlier, *results][-MAX_PICTURES:]


def _pictures_in(conversation: Sequence[items.Item]) -> Iterator[InputImage | str]:
    for item in conversation:
        match item:
            case items.Message(content=list(parts)):
                yield from (part for part in parts if isinstance(part, InputImage))
            case items.FunctionCallOutput(output=list(parts)) | items.CustomToolCallOutput(output=list(parts)):
                yield from (part for part in parts if isinstance(part, InputImage))
            case ImageGenerationCall(result=str(result)) if result:
                yield result


async def load_pictures(sources: PictureSources, pictures: Sequence[InputImage | str]) -> tuple[list[bytes], list[ClientError]]:
    """
    The bytes of those pictures that can be changed, and why the others can't.

    Raises:
        ClientError: they are too large together.
    """
    contents: list[bytes] = []
    failures: list[ClientError] = []
    for index, picture in enumerate(pictures):
        try:
            contents.append(await sources.load(picture, f"picture {index + 1}"))
        except ClientError as error:
            failures.append(error)
        if sum(map(len, contents)) > MAX_TOTAL_BYTES:
            raise ClientError(
                f"The pictures of the conversation are too large together: the limit is {MAX_TOTAL_BYTES >> 20} MiB.",
                code="file_too_large",
                param="input",
            )
    return contents, failures


async def decode_picture(text: str, param: str) -> bytes:
    """
    A picture in base64, or a data URL with one.

    Raises:
        ClientError: it is neither, or too large.
    """
    # Before it is decoded; 300 is room for the head of a data URL.
    if len(text) * 3 // 4 > MAX_PICTURE_BYTES + 300:
        raise file_too_large(param, MAX_PICTURE_BYTES)
    try:
        return await offload(len(text), _decode_base64, text)
    except ValueError:  # Also raised for text that is not ASCII.
        raise ClientError(
            f"Invalid '{param}': expected an image in base64, or a data URL with one.", code="invalid_value", param=param
        ) from None


def _decode_base64(text: str) -> bytes:
    header = _DATA_URL.match(text)
    return binascii.a2b_base64(text[header.end() if header else 0 :], strict_mode=True)


def _wrong_format(param: str) -> ClientError:
    return ClientError(f"Invalid '{param}': only PNG, WebP and JPEG images can be changed.", code="invalid_value", param=param)
