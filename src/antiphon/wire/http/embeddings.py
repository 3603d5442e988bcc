"""The types of `POST /v1/embeddings`."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.errors import ClientError
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import Opt, Wire

MAX_INPUTS = 2048
"""Of one request, as OpenAI's API has it."""


class EmbeddingsRequest(Wire, kw_only=True):
    """
    Texts to make vectors of.

    Attributes:
        input: one text or several. Tokens, as integers or lists of them, are for model servers that know their tokenizer.
        dimensions: how many numbers a vector has.
        encoding_format: numbers, or base64 of 32-bit floats, little-endian.
    """

    input: str | list[str | int | list[int]]
    model: Opt[str] = UNSET
    dimensions: Opt[Annotated[int, Meta(ge=1)]] = UNSET
    encoding_format: Literal["float", "base64"] = "float"
    user: Opt[str] = UNSET


class Embedding(Wire, kw_only=True):
    """The vector of the text at `index`."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(Wire, kw_only=True):
    """The tokens of all texts, as far as they were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Wire, kw_only=True):
    """Vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


_reader: Reader[EmbeddingsRequest] = Reader(EmbeddingsRequest)


def decode_texts(body: bytes) -> tuple[EmbeddingsRequest, list[str]]:
    """
    A request, and its texts.

    Raises:
        ClientError: it is no such request, or its input is empty, too long or no text.
    """
    request = _reader.read(body)
    inputs = [request.input] if isinstance(request.input, str) else request.input
    if not inputs:
        raise ClientError("Invalid 'input': empty array. Expected an array with at least one text.", code="empty_array", param="input")
    if len(inputs) > MAX_INPUTS:
        raise ClientError(
            f"Invalid 'input': array too long. Expected at most {MAX_INPUTS} texts, but got {len(inputs)} instead.",
            code="array_above_max_length",
            param="input",
        )
    texts = [text for text in inputs if isinstance(text, str)]
    if len(texts) < len(inputs):
        raise ClientError(
            "Invalid 'input': this model takes texts, not tokens. Send text (LangChain: check_embedding_ctx_length=False).",
            code="invalid_value",
            param="input",
        )
    if "" in texts:
        place = "input" if isinstance(request.input, str) else f"input[{texts.index('')}]"
        raise ClientError(f"Invalid '{place}': empty string. Expected a text.", code="empty_string", param=place)
    return request, texts
