"""The settings `[[tools.mcp]]`: the operator's own MCP servers, which requests name by their labels."""

import re
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator, model_validator

MAX_SERVERS = 100
LABEL_PATTERN = "^[a-zA-Z0-9_-]+$"
MAX_LABEL_LENGTH = 64

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def is_header(name: str, value: str) -> bool:
    """Whether both have the form of an HTTP header field. Source: RFC 9110 5.1, 5.5."""
    return _HEADER_NAME.fullmatch(name) is not None and _HEADER_VALUE.fullmatch(value) is not None


def is_server_url(url: str) -> bool:
    """Whether a server can be asked at this URL; one with a user in it can't, as the user would be in logs."""
    if not url.isprintable() or " " in url:  # `urlsplit` drops line breaks, and would read another URL.
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


class McpServerSettings(BaseModel, frozen=True, extra="forbid"):
    """A server of the operator's, which requests name by its label alone."""

    label: str = Field(pattern=LABEL_PATTERN, max_length=MAX_LABEL_LENGTH, description="The name that requests give as `server_label`.")
    url: str | None = Field(default=None, description="Where the server is; it may be on any address.")
    command: tuple[str, ...] = Field(
        default=(), description="A program, with its arguments, that is the server: it is asked over its standard input."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the program.")
    folder: str | None = Field(default=None, description="The folder in which the program runs.")
    processes: int = Field(
        default=16, ge=1, description="The most processes of the program at once; each response that uses it has its own."
    )
    headers: dict[str, str] = Field(default_factory=dict, description="Headers of every request to the server.")
    key_env: str | None = Field(
        default=None, min_length=1, description="The environment variable with the server's key, sent as a bearer token."
    )
    accept_credentials: bool = Field(
        default=False, description="Whether requests may send `authorization` and `headers` of their own to the server."
    )
    description: str | None = Field(default=None, description="What it is for; the model reads it where the request says nothing.")
    allowed_tools: tuple[str, ...] | None = Field(default=None, description="The only tools that requests may use; unset for all.")

    @field_validator("url")
    @classmethod
    def _validate_url(cls, url: str | None) -> str | None:
        if url is not None and not is_server_url(url):
            raise ValueError("expected a URL that begins with http:// or https://, without a user in it")
        return url

    @field_validator("headers")
    @classmethod
    def _validate_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        invalid = [name for name, value in headers.items() if not is_header(name, value)]
        if invalid:
            raise ValueError(f"expected headers such as X-Team = \"blue\"; '{invalid[0]}' or its value is none")
        return headers

    @model_validator(mode="after")
    def _validate_kind(self) -> "McpServerSettings":
        if (self.url is None) == (not self.command):
            raise ValueError("needs either `url` or `command`")
        if self.url is None and (self.headers or self.key_env or self.accept_credentials):
            raise ValueError("`headers`, `key_env` and `accept_credentials` are for a server with a `url`")
        if self.url is not None and (self.env or self.folder):
            raise ValueError("`env` and `folder` are for a server with a `command`")
        return self
