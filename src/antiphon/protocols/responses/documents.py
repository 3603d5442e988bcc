"""Images and documents in content parts, as the engine gets them: as they are, or as their text."""

from antiphon.engine_api import documents, history as engine_history
from antiphon.errors import ClientError
from antiphon.protocols.responses.tools import TranslationContext
from antiphon.wire.codec.fields import value_or
from antiphon.wire.responses import parts

FORGOTTEN_FILE_TEXT = "(A file that was here has been deleted.)"
"""
Stands for a file of an earlier turn that is no longer stored. The client can't take it out of the conversation, and the
model only misses what it has read before.
"""


def image_part(part: parts.InputImage | parts.OutputImage, path: str, context: TranslationContext) -> engine_history.HistoryPart:
    """
    An image for the engine.

    Raises:
        ClientError: the file is none, or neither a file nor a URL is named.
    """
    if not (part.file_id or part.image_url):
        message = "One of 'file_id' or 'image_url' must be provided."
        raise ClientError(message, code="missing_required_parameter", param=f"{path}.file_id")
    if not part.file_id:
        return engine_history.ImagePart(part.image_url or None, detail=value_or(part.detail, "auto"))
    document = context.documents.get(part.file_id)
    if document is None:
        return engine_history.TextPart(FORGOTTEN_FILE_TEXT)
    if not document.is_image:
        raise ClientError(
            "You gave an unsupported image. Please make sure your image is of one of the following formats: 'png', 'jpeg', 'webp', 'gif'.",
            code="invalid_image_format",
            param=f"{path}.file_id",
        )
    return engine_history.ImagePart(document.url, detail=value_or(part.detail, "auto"))


def file_part(part: parts.InputFile, path: str, context: TranslationContext) -> engine_history.HistoryPart:
    """
    A document for the engine: an image as such, and a text as text where the engine takes no documents.

    Raises:
        ClientError: the engine can't take it, it is not valid base64 or too large, or there is none.
    """
    capabilities = context.capabilities
    if part.file_id:
        document = context.documents.get(part.file_id)
        if document is None:
            return engine_history.TextPart(FORGOTTEN_FILE_TEXT)
    elif part.file_data:
        document = documents.read_document(part.file_data, part.filename or None, f"{path}.file_data")
    elif part.file_url:
        document = context.documents.get(part.file_url)
        if document is None:
            # Nothing was fetched for it here, so the engine fetches URLs itself.
            return engine_history.FilePart(part.file_url, filename=part.filename or None)
    else:
        raise ClientError(
            "One of 'file_id', 'file_data' or 'file_url' must be provided.", code="missing_required_parameter", param=f"{path}.file_id"
        )
    if document.is_image and capabilities.images:
        return engine_history.ImagePart(document.url, detail=value_or(part.detail, "auto"))
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
