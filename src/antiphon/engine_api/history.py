"""
What has been said: the conversation so far, in terms of no protocol and no engine.
"""

from typing import Any, Literal

from msgspec import Struct


class _HistoryStruct(Struct, frozen=True, tag_field="said"):
    """Tagged by class name, so that a history can cross a process boundary."""


Role = Literal["system", "developer", "user", "assistant"]
Phase = Literal["commentary", "final_answer"]


class TextPart(_HistoryStruct, frozen=True, tag=True):
    """Words."""

    text: str


class RefusalPart(_HistoryStruct, frozen=True, tag=True):
    """Words with which the assistant declined."""

    text: str


class ImagePart(_HistoryStruct, frozen=True, tag=True):
    """A picture: `url` is an http(s) or data URL; `file_id` names an uploaded file. One of the two."""

    url: str | None = None
    file_id: str | None = None
    detail: str = "auto"


class FilePart(_HistoryStruct, frozen=True, tag=True):
    """A document: by address, by uploaded file, or whole as a base64 data URL."""

    url: str | None = None
    file_id: str | None = None
    inline: str | None = None
    filename: str | None = None


class AudioPart(_HistoryStruct, frozen=True, tag=True):
    """A recording, base64, in a container format such as `wav` or `mp3`."""

    inline: str
    format: str


class SpeechPart(_HistoryStruct, frozen=True, tag=True):
    """
    Sound of a live conversation: s16le mono, whole samples.

    Attributes:
        turn_id: the turn that it was heard as; None where the client gave it whole, as an item.
        transcript: what was said, where that is known.
    """

    pcm: bytes
    rate_hz: int
    turn_id: str | None = None
    transcript: str | None = None


class VideoPart(_HistoryStruct, frozen=True, tag=True):
    """A film, base64, in a container format such as MP4; `pictures_at_once` are looked at together."""

    inline: str
    pictures_at_once: int = 1


HistoryPart = TextPart | RefusalPart | ImagePart | FilePart | AudioPart | SpeechPart | VideoPart


class Message(_HistoryStruct, frozen=True, tag=True):
    """
    Something said by one side.

    Attributes:
        phase: by which some models tell what they say on the way from what they say in the end.
        heard_ms: of an answer aloud that was cut short, how much of its sound was heard; its words end there too.
    """

    role: Role
    parts: tuple[HistoryPart, ...]
    phase: Phase | None = None
    played_ms: int | None = None


class ReasoningItem(_HistoryStruct, frozen=True, tag=True):
    """Reasoning of an earlier answer: its text and summary where they are known, and the engine's own sealed form."""

    text: str = ""
    summary: tuple[str, ...] = ()
    encrypted_content: str | None = None


class ToolCall(_HistoryStruct, frozen=True, tag=True):
    """The assistant called a tool. `arguments` is JSON text, or for a custom tool its free-form input."""

    call_id: str
    name: str
    arguments: str
    custom: bool = False
    namespace: str | None = None


class ToolResult(_HistoryStruct, frozen=True, tag=True):
    """What a called tool gave back."""

    call_id: str
    parts: tuple[HistoryPart, ...]


class HostedToolItem(_HistoryStruct, frozen=True, tag=True):
    """What a hosted tool left: an item as the Responses API has it, for an engine that knows such items; `type` is among its fields."""

    item: dict[str, Any]


HistoryItem = Message | ReasoningItem | ToolCall | ToolResult | HostedToolItem
