"""Transcribes the audio in requests for models that can't hear."""

import binascii

from msgspec import structs

from antiphon.engine_api.options import Transcription
from antiphon.errors import ClientError, invalid_base64
from antiphon.runtime.speech.service import SpeechService
from antiphon.runtime.speech.transcripts import audio_key
from antiphon.speech.base import join_text
from antiphon.wire.responses import items
from antiphon.wire.responses.parts import InputAudio


async def transcribe_item(item: items.Item, path: str, speech: SpeechService, tenant: str) -> items.Item:
    """
    The item with a transcript in each of its audio parts; it is stored like this, too.

    Args:
        path: of the item in the request, such as `input[0]`, for errors.
        tenant: whose audio is transcribed once, though a conversation to which it was added keeps only the audio.

    Raises:
        ApiError: a part can't be read or transcribed.
    """
    if not isinstance(item, items.Message) or isinstance(item.content, str):
        return item
    content = [
        await _transcribe_part(part, f"{path}.content[{index}]", speech, tenant) if type(part) is InputAudio else part
        for index, part in enumerate(item.content)
    ]
    return structs.replace(item, content=content)


async def _transcribe_part(part: InputAudio, path: str, speech: SpeechService, tenant: str) -> InputAudio:
    if isinstance(part.transcript, str):
        return part
    key = await audio_key(tenant, part.input_audio.data)
    if (transcript := speech.transcripts.find(key)) is not None:
        return structs.replace(part, transcript=transcript)
    param = f"{path}.input_audio.data"
    try:
        file = binascii.a2b_base64(part.input_audio.data, strict_mode=True)
    except (binascii.Error, ValueError):
        raise invalid_base64(param) from None
    try:
        transcript = await transcribe_file(file, speech)
    except ClientError as error:
        raise ClientError(error.message, code=error.code, param=param, status=error.status) from None
    speech.transcripts.add(key, transcript)
    return structs.replace(part, transcript=transcript)


async def transcribe_file(file: bytes, speech: SpeechService) -> str:
    """
    The transcript of an audio file in any format that `speech` can read.

    Raises:
        ApiError: there is no transcriber, or the file can't be read.
    """
    stack = await speech.load()
    return join_text([chunk async for chunk in stack.transcribe_long(speech.audio_files.decode(file), Transcription())])
