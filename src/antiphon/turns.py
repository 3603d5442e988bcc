"""
What has been said: the conversation so far, in terms of no protocol and no engine.
"""

from typing import Any, Literal

from msgspec import Struct


class _Said(Struct, frozen=True, tag_field="said"):
    """Tagged by class name, so that a history can cross a process boundary."""


Role = Literal["system", "developer", "user", "assistant"]
Phase = Literal["commentary", "final_answer"]


class TextPart(_Said, frozen=True, tag=True):
    """Words."""

    text: str


class RefusalPart(_Said, frozen=True, tag=True):
    """Words with which the assistant declined."""

    text: str


class ImagePart(_Said, frozen=True, tag=True):
    """A picture: `url` is an http(s) or data URL; `file_id` names an uploaded file. One of the two."""

    url: str | None = None
    file_id: str | None = None
    detail: str = "auto"


class FilePart(_Said, frozen=True, tag=True):
    """A document: by address, by uploaded file, or whole as a base64 data URL."""

    url: str | None = None
    file_id: str | None = None
    inline: str | None = None
    filename: str | None = None


class AudioPart(_Said, frozen=True, tag=True):
    """A recording, base64, in a container format such as `wav` or `mp3`."""

    inline: str
    format: str


Part = TextPart | RefusalPart | ImagePart | FilePart | AudioPart


class Message(_Said, frozen=True, tag=True):
    """Something said by one side; some models tell by `phase` what they say on the way from what they say in the end."""

    role: Role
    parts: tuple[Part, ...]
    phase: Phase | None = None


class Thought(_Said, frozen=True, tag=True):
    """Reasoning of an earlier answer: its text and summary where they are known, and the engine's own sealed form."""

    text: str = ""
    summary: tuple[str, ...] = ()
    sealed: str | None = None


class ToolCall(_Said, frozen=True, tag=True):
    """The assistant called a tool. `arguments` is JSON text, or for a custom tool its free-form input."""

    call_id: str
    name: str
    arguments: str
    custom: bool = False
    namespace: str | None = None


class ToolResult(_Said, frozen=True, tag=True):
    """What a called tool gave back."""

    call_id: str
    parts: tuple[Part, ...]


class Hosted(_Said, frozen=True, tag=True):
    """What a hosted tool left: an item as the Responses API has it, for an engine that knows such items; `type` is among its fields."""

    item: dict[str, Any]


Turn = Message | Thought | ToolCall | ToolResult | Hosted
