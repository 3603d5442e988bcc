"""From a decoded chat to a resolved one: its files are loaded, and audio is transcribed for a model that takes none."""

import time
from collections.abc import Iterator, Mapping

from msgspec import structs

from antiphon.engine_api.documents import FileContent
from antiphon.protocols.chat.request import ResolvedChat
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.files.references import FileReference, load_files
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.runtime.speech.transcribe_input import transcribe_item
from antiphon.wire.chat.messages import ChatAudio, ChatFile, ChatPart
from antiphon.wire.chat.request import ChatRequest
from antiphon.wire.responses import items
from antiphon.wire.responses.parts import InputAudio, InputText, MessagePart


async def resolve_chat(
    service: Service, request: ChatRequest, model: ServedModel, tenant: str, size_bytes: int, lease: BodyLease
) -> ResolvedChat:
    """
    Resolve a chat with `model`.

    Args:
        size_bytes: of the request's JSON.
        lease: counts the memory that uploaded files take.

    Raises:
        ApiError: it refers to a file that does not exist, or has audio that can't be decoded; or the model has no worker
            now.
    """
    model.require_worker()
    capabilities = model.engine.capabilities
    documents = await _load_documents(service, request, tenant, lease)
    transcripts: Mapping[str, str] = {}
    if service.speech.missing_reason is None and not capabilities.audio_in:
        transcripts = await _transcribe(service, request, tenant)
    if request.is_spoken:
        capabilities = structs.replace(model.live_engine.capabilities, audio_in=capabilities.audio_in)
    return ResolvedChat(
        id=new_id("chatcmpl").replace("_", "-", 1),  # as the original's
        response_id=new_id("resp"),
        created_at=int(time.time()),
        model=model.name,
        request=request,
        capabilities=capabilities,
        documents=documents,
        transcripts=transcripts,
        size_bytes=size_bytes + sum(len(document.url) for document in documents.values()),
    )


def _parts(request: ChatRequest) -> Iterator[tuple[int, int, ChatPart]]:
    """The parts of all messages, with the numbers of their message and of themselves in it."""
    for number, message in enumerate(request.messages):
        if isinstance(message.content, list):
            yield from ((number, position, part) for position, part in enumerate(message.content))


async def _load_documents(service: Service, request: ChatRequest, tenant: str, lease: BodyLease) -> Mapping[str, FileContent]:
    references = [
        FileReference(part.file.file_id, f"messages[{number}].content[{position}].file.file_id")
        for number, position, part in _parts(request)
        if isinstance(part, ChatFile) and part.file.file_id
    ]
    return await load_files(service.files, tenant, references, lease, "messages") if references else {}


async def _transcribe(service: Service, request: ChatRequest, tenant: str) -> Mapping[str, str]:
    """The transcripts of recordings, by the path of their part."""
    transcripts: dict[str, str] = {}
    for number, position, part in _parts(request):
        if not isinstance(part, ChatAudio):
            continue
        # At its own place in its message, which errors name.
        content: list[MessagePart] = [*[InputText(text="")] * position, InputAudio(input_audio=part.input_audio)]
        item = await transcribe_item(items.Message(role="user", content=content), f"messages[{number}]", service.speech, tenant)
        assert isinstance(item, items.Message)
        recording = item.content[position]
        if isinstance(recording, InputAudio) and isinstance(recording.transcript, str):
            transcripts[f"messages[{number}].content[{position}]"] = recording.transcript
    return transcripts
