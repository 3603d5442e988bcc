"""The Files API: what is uploaded, and what its endpoints return."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw

from antiphon.errors import missing_parameter
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import Opt, Wire

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class ExpiresAfter(Wire, kw_only=True):
    """When a file is deleted: so many seconds after its creation, from an hour to thirty days."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


class FileOptions(Wire, kw_only=True):
    """The fields of an upload beside the file."""

    purpose: Opt[Purpose] = UNSET
    expires_after: Opt[ExpiresAfter] = UNSET


class CreateFileForm(Wire, kw_only=True):
    """A form with a file."""

    file: Annotated[Raw, Meta(extra_json_schema={"type": "string", "contentMediaType": "application/octet-stream", "minLength": 1})]
    purpose: Purpose
    expires_after: Opt[ExpiresAfter] = UNSET


class FileObject(Wire, kw_only=True):
    """An uploaded file; `expires_at` is null if it stays until it is deleted."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"] = "processed"
    status_details: str | None = None


class FileList(Wire, kw_only=True):
    """A page of files; the next one follows `last_id`."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Wire, kw_only=True):
    """A file was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


_reader: Reader[FileOptions] = Reader(FileOptions)

_MEMBER = re.compile(r"expires_after\[(\w+)\]", re.ASCII)


def read_file_options(fields: Iterable[tuple[str, str]], *, is_complete: bool) -> FileOptions:
    """
    Decode the fields of a form; unknown ones are left out.

    Args:
        fields: names and values; an object is spread over fields such as `expires_after[seconds]`, or is JSON.
        is_complete: whether the form has no more fields.

    Raises:
        ClientError: a field is wrong, or `purpose` is missing; `param` names it.
    """
    values: dict[str, object] = {}
    members: dict[str, object] = {}
    for name, text in fields:
        if (match := _MEMBER.fullmatch(name)) is not None:
            members[match[1]] = _number_or_text(text) if match[1] == "seconds" else text
        elif name == "expires_after":
            values[name] = _json_or_text(text)
        elif name == "purpose":
            values[name] = text
    # Only a complete object is checked: its other field may be yet to come.
    if members and is_complete:
        values["expires_after"] = members
    options = _reader.read(msgspec.json.encode(values))
    if is_complete and options.purpose is UNSET:
        raise missing_parameter("purpose")
    return options


def _number_or_text(text: str) -> Raw | str:
    # A form has nothing but texts. One that is no number stays a text, so that the error names its type.
    return Raw(text.encode()) if re.fullmatch(r"-?(0|[1-9]\d{0,15})", text, re.ASCII) else text


def _json_or_text(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
