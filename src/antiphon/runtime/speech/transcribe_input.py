"""Recordings in requests, written down for models that can't hear."""

import binascii

from msgspec import structs

from antiphon.engine_api.options import Transcription
from antiphon.errors import ClientError, ServerError, invalid_base64
from antiphon.runtime.speech.service import SpeechService
from antiphon.wire.responses import items
from antiphon.wire.responses.parts import InputAudio


async def transcribe_item(item: items.Item, path: str, speech: SpeechService) -> items.Item:
    """
    The item, with what is said in each of its recordings where that was not known; as such it is also kept.

    Args:
        path: where the client finds it in what it sent.

    Raises:
        ApiError: a recording can't be read, or not be written down.
    """
    if not isinstance(item, items.Message) or isinstance(item.content, str):
        return item
    content = [
        await _transcribe_part(part, f"{path}.content[{place}]", speech) if type(part) is InputAudio else part
        for place, part in enumerate(item.content)
    ]
    return structs.replace(item, content=content)


async def _transcribe_part(part: InputAudio, path: str, speech: SpeechService) -> InputAudio:
    if isinstance(part.transcript, str):
        return part
    param = f"{path}.input_audio.data"
    try:
        file = binascii.a2b_base64(part.input_audio.data, strict_mode=True)
    except (binascii.Error, ValueError):
        raise invalid_base64(param) from None
    try:
        return structs.replace(part, transcript=await transcribe_file(file, speech))
    except ClientError as mistake:
        raise ClientError(mistake.message, code=mistake.code, param=param, status=mistake.status) from None


async def transcribe_file(file: bytes, speech: SpeechService) -> str:
    """
    What the ears hear in a recording, of any kind that `speech` can read.

    Raises:
        ApiError: there are no ears, or it can't be read.
    """
    from antiphon.speech.stt.long_form import join_text, transcribe_long  # noqa: PLC0415 - its libraries take a while to load, and many servers need none

    parts = await speech.load()
    if parts.transcriber is None:
        raise ServerError("This server has no ears.", status=501, code="speech_not_available")
    return join_text([passage async for passage in transcribe_long(parts.transcriber, speech.audio_files.decode(file), Transcription())])
