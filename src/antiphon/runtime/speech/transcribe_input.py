"""Recordings in requests, written down for models that can't hear."""

import binascii

from msgspec import structs

from antiphon.engine_api.options import Transcription
from antiphon.errors import ClientMistake, OurFault, invalid_base64
from antiphon.runtime.speech.service import Speech
from antiphon.wire.responses import items
from antiphon.wire.responses.parts import InputAudio


async def written_down(item: items.Item, path: str, speech: Speech) -> items.Item:
    """
    The item, with what is said in each of its recordings where that was not known; as such it is also kept.

    Args:
        path: where the client finds it in what it sent.

    Raises:
        Fault: a recording can't be read, or not be written down.
    """
    if not isinstance(item, items.Message) or isinstance(item.content, str):
        return item
    content = [
        await _heard(part, f"{path}.content[{place}]", speech) if type(part) is InputAudio else part
        for place, part in enumerate(item.content)
    ]
    return structs.replace(item, content=content)


async def _heard(part: InputAudio, path: str, speech: Speech) -> InputAudio:
    if isinstance(part.transcript, str):
        return part
    param = f"{path}.input_audio.data"
    try:
        file = binascii.a2b_base64(part.input_audio.data, strict_mode=True)
    except (binascii.Error, ValueError):
        raise invalid_base64(param) from None
    try:
        return structs.replace(part, transcript=await said_in(file, speech))
    except ClientMistake as mistake:
        raise ClientMistake(mistake.message, code=mistake.code, param=param, status=mistake.status) from None


async def said_in(file: bytes, speech: Speech) -> str:
    """
    What the ears hear in a recording, of any kind that `speech` can read.

    Raises:
        Fault: there are no ears, or it can't be read.
    """
    from antiphon.speech.stt.long_form import dictated, joined  # noqa: PLC0415 - its libraries take a while to load, and many servers need none

    parts = await speech.ready()
    if parts.ear is None:
        raise OurFault("This server has no ears.", status=501, code="speech_not_available")
    return joined([passage async for passage in dictated(parts.ear, speech.recordings.sound(file), Transcription())])
