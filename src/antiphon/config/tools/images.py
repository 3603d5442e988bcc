"""The settings `[[tools.images]]`."""

import re
from collections.abc import Mapping
from typing import Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

from antiphon.masking import mask_address

MAX_IMAGE_SERVERS = 20

ImageField = Literal[
    "background",
    "complexity",
    "frame_count",
    "frame_duration_ms",
    "input_fidelity",
    "moderation",
    "output_compression",
    "output_format",
    "partial_images",
    "quality",
    "response_format",
    "size",
    "svg",
]
"""A field of a request for an image, beside `model`, `prompt` and `n`, which every server takes."""

IMAGE_FIELDS: tuple[ImageField, ...] = get_args(ImageField)

USUAL_FIELDS: tuple[ImageField, ...] = (
    "background",
    "input_fidelity",
    "moderation",
    "output_compression",
    "output_format",
    "partial_images",
    "quality",
    "size",
)
"""The fields that the GPT Image models take, as the default of `fields`."""


# RFC 9110 5.1 and 5.5.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")


class ImagesEntry(BaseModel, frozen=True, extra="forbid"):
    """A server with the Images API."""

    model: str = Field(
        min_length=1, max_length=200, description="The name that requests may give as `model`; one ending in `*` is any such."
    )
    base_url: str = Field(description="Its address with the version, such as `http://127.0.0.1:8000/v1`.")
    upstream_model: str | None = Field(default=None, min_length=1, description="What the server itself calls the model.")
    key_env: str | None = Field(default=None, min_length=1, description="The environment variable with its key.")
    headers: Mapping[str, str] = Field(default={}, description="Headers that are sent with every request.")
    fields: tuple[ImageField, ...] = Field(default=USUAL_FIELDS, description="The fields that it takes; others are not sent.")
    edits: bool = Field(default=True, description="Whether it can change pictures.")
    timeout_s: float = Field(default=110, gt=0, le=3600, description="Seconds that a picture may take.")
    max_mib: int = Field(default=32, ge=1, le=256, description="MiB that a picture may have, before base64.")
    parallel: int = Field(default=4, ge=1, le=256, description="The most requests to it at once.")

    @field_validator("headers")
    @classmethod
    def _validate_headers(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        if not all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value) for name, value in headers.items()):
            raise ValueError('expected headers such as {x-team = "art"}, in ASCII and on one line')
        return headers

    @field_validator("base_url")
    @classmethod
    def _validate_base_url(cls, base_url: str) -> str:
        try:
            url = urlsplit(base_url)
            is_valid = url.scheme in ("http", "https") and url.hostname and url.port != 0 and url.username is None and not url.fragment
        except ValueError:
            is_valid = False
        if not is_valid or url.query or not re.fullmatch(r"[\x21-\x7e]+", base_url):
            raise ValueError(
                f"expected a URL such as 'http://127.0.0.1:8000/v1', without a name or password, got '{mask_address(base_url)}'"
            )
        return base_url.rstrip("/")
