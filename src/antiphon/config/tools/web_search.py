"""The settings `[tools.web_search]`."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator, model_validator

from antiphon.config.settings import check_networks

MAX_FOLDERS = 20


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError("expected a URL such as 'http://127.0.0.1:8080'")
    return url


class PageFolderEntry(BaseModel, frozen=True, extra="forbid"):
    """A folder of text, Markdown and HTML files that searches find."""

    path: str = Field(min_length=1, description="The folder.")
    url: str = Field(max_length=500, description="The address of the folder's files: a file's own is this with its path behind it.")

    _validate_url = field_validator("url")(_check_url)


class WebSearchSettings(BaseModel, frozen=True, extra="forbid"):
    """Web search: who searches, and which pages may be opened."""

    provider: Literal["searxng", "brave", "tavily", "local"] = Field(
        description="Who searches: a SearXNG instance, Brave, Tavily, or the local index alone."
    )
    url: str | None = Field(default=None, description="The SearXNG instance; for Brave and Tavily another address than their own.")
    key_env: str | None = Field(default=None, min_length=1, description="The environment variable with the key for Brave or Tavily.")
    engines: tuple[str, ...] = Field(default=(), description="SearXNG's engines to ask; none: those that the instance has as its default.")
    language: str = Field(default="all", min_length=1, description="The language of SearXNG's results, such as `en` or `de-CH`.")
    safe_search: int = Field(default=1, ge=0, le=2, description="How strictly SearXNG and Brave leave out adult content: 0 to 2.")
    timeout_s: float = Field(default=10, gt=0, le=60, description="Seconds for one search, and for one page with its redirects.")
    concurrency: int = Field(default=4, ge=1, le=100, description="The most searches at once; more wait.")
    fetch_pages: bool = Field(default=True, description="Whether pages are fetched; else only those of the local index can be opened.")
    page_mb: float = Field(default=2, gt=0, le=64, description="The most megabytes of one page; larger ones are refused.")
    networks: tuple[str, ...] = Field(default=(), description="Networks that pages may be fetched from, besides the public internet.")
    folders: tuple[PageFolderEntry, ...] = Field(default=(), max_length=MAX_FOLDERS, description="Folders that the local index has.")
    file: str | None = Field(default=None, min_length=1, description="Where the local index is kept; unset: in memory.")
    index_mb: float = Field(default=100, gt=0, description="The most megabytes of fetched pages in the local index.")

    @field_validator("url")
    @classmethod
    def _validate_url(cls, url: str | None) -> str | None:
        return None if url is None else _check_url(url)

    _validate_networks = field_validator("networks")(check_networks)

    @model_validator(mode="after")
    def _validate_provider(self) -> "WebSearchSettings":
        if self.provider == "searxng" and self.url is None:
            raise ValueError("SearXNG needs `url`, the address of the instance")
        if self.provider in ("brave", "tavily") and self.key_env is None:
            raise ValueError("the provider needs `key_env`, the environment variable with its key")
        return self
