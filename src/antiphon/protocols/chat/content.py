"""The parts of messages, as the engine gets them."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.engine_api import documents, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.documents import FileContent
from antiphon.errors import ClientError, missing_parameter, quote_list, unsupported_value
from antiphon.wire.chat.messages import ChatAudio, ChatContent, ChatFile, ChatImage, ChatPart, ChatRefusal, ChatText
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.media_urls import check_media_url

SILENCE_TEXT = "(A recording in which nothing is said.)"

_TEXT_ONLY = (ChatText,)


class ContentContext(Struct, frozen=True):
    """
    What the translation of messages needs to know.

    Attributes:
        model: the name that the client requested.
        documents: the uploaded files that messages name, by id.
        transcripts: of recordings, by the path of their part, for an engine that takes none.
    """

    capabilities: Capabilities
    model: str
    documents: Mapping[str, FileContent] = {}
    transcripts: Mapping[str, str] = {}


def to_parts(content: ChatContent, path: str, context: ContentContext) -> tuple[history.HistoryPart, ...]:
    """
    The content of a message of the user, or of a tool.

    Raises:
        ClientError: the engine can't read a part.
    """
    if isinstance(content, str):
        return (history.TextPart(content),)
    return tuple(_part(part, f"{path}[{index}]", context) for index, part in enumerate(content))


def to_text_parts(
    content: ChatContent, path: str, role: str, kinds: Sequence[type[ChatPart]] = _TEXT_ONLY
) -> tuple[history.HistoryPart, ...]:
    """
    The content of a message that may only have text.

    Args:
        kinds: of the parts that it may have.

    Raises:
        ClientError: it has another part.
    """
    if isinstance(content, str):
        return (history.TextPart(content),)
    for index, part in enumerate(content):
        if not isinstance(part, tuple(kinds)):
            names = [str(kind.__struct_config__.tag) for kind in kinds]
            raise ClientError(
                f"Invalid '{path}[{index}].type': a message with role '{role}' has no part of type '{part.type}'. "
                f"Supported values are: {quote_list(names)}.",
                code="invalid_value",
                param=f"{path}[{index}].type",
            )
    return tuple(history.RefusalPart(part.refusal) if isinstance(part, ChatRefusal) else history.TextPart(_text(part)) for part in content)


def _text(part: ChatPart) -> str:
    return part.text if isinstance(part, ChatText) else ""


def _part(part: ChatPart, path: str, context: ContentContext) -> history.HistoryPart:
    match part:
        case ChatText(text=text):
            return history.TextPart(text)
        case ChatRefusal(refusal=refusal):
            return history.RefusalPart(refusal)
        case ChatImage():
            return _image(part, path, context)
        case ChatAudio():
            return _audio(part, path, context)
        case ChatFile():
            return _file(part, path, context)


def _image(part: ChatImage, path: str, context: ContentContext) -> history.HistoryPart:
    if not context.capabilities.images:
        raise _unsupported_part(path, context.model, "takes no images")
    check_media_url(part.image_url.url, f"{path}.image_url.url")
    return history.ImagePart(part.image_url.url, detail=value_or(part.image_url.detail, "auto"))


def _audio(part: ChatAudio, path: str, context: ContentContext) -> history.HistoryPart:
    if not context.capabilities.audio_in:
        if path in context.transcripts:
            return history.TextPart(context.transcripts[path] or SILENCE_TEXT)
        raise _unsupported_part(path, context.model, "takes no audio")
    if "://" in part.input_audio.data[:64]:
        # No base64, but what a model's server might fetch.
        param = f"{path}.input_audio.data"
        raise ClientError(f"Invalid '{param}': it is a URL, not base64.", code="invalid_value", param=param)
    return history.AudioPart(part.input_audio.data, part.input_audio.format)


def _file(part: ChatFile, path: str, context: ContentContext) -> history.HistoryPart:
    """An image as such, and a text as text where the engine takes no documents."""
    file, capabilities = part.file, context.capabilities
    if file.file_id:
        document = context.documents[file.file_id]
    elif file.file_data:
        document = documents.read_document(file.file_data, value_or(file.filename, None), f"{path}.file.file_data")
    else:
        raise missing_parameter(f"{path}.file.file_id")
    if document.is_image and capabilities.images:
        return history.ImagePart(document.url)
    if capabilities.files and not document.is_image:
        return document.file_part
    text = documents.text_part(document.file_part)
    if text is None:
        choices = " and ".join(["text files", *["images"] * capabilities.images])
        raise _unsupported_part(path, context.model, f"takes no files of type '{document.media_type}', only {choices}")
    return text


def _unsupported_part(path: str, model: str, problem: str) -> ClientError:
    return ClientError(
        f"Unsupported parameter: '{path}' is not supported with the '{model}' model, which {problem}.",
        code="unsupported_parameter",
        param=path,
    )


def check_voice(voice: str, context: ContentContext) -> None:
    """
    Check that the engine has a voice.

    Raises:
        ClientError: it has not.
    """
    if context.capabilities.voices and voice not in context.capabilities.voices:
        raise unsupported_value("audio.voice", voice, context.model, context.capabilities.voices)
