"""The conversation so far, in terms of no protocol and no engine."""

from typing import Any, Literal

from msgspec import Struct


class _HistoryStruct(Struct, frozen=True, tag_field="said"):
    """Tagged by class name, so that a history can cross a process boundary."""


Role = Literal["system", "developer", "user", "assistant"]
Phase = Literal["commentary", "final_answer"]


class TextPart(_HistoryStruct, frozen=True, tag=True):
    """Text."""

    text: str


class RefusalPart(_HistoryStruct, frozen=True, tag=True):
    """Text with which the assistant refused."""

    text: str


class ImagePart(_HistoryStruct, frozen=True, tag=True):
    """An image: `url` is an http(s) or data URL; `file_id` names an uploaded file. One of the two."""

    url: str | None = None
    file_id: str | None = None
    detail: str = "auto"


class FilePart(_HistoryStruct, frozen=True, tag=True):
    """A document: by URL, by uploaded file, or inline as a base64 data URL."""

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
    Audio of a live conversation: s16le mono, whole samples.

    Attributes:
        turn_id: the turn that it was received as; None if the client sent it as an item.
        transcript: None if unknown.
    """

    pcm: bytes
    rate_hz: int
    turn_id: str | None = None
    transcript: str | None = None


class VideoPart(_HistoryStruct, frozen=True, tag=True):
    """A video, base64, in a container format such as MP4; `pictures_at_once` frames are looked at together."""

    inline: str
    pictures_at_once: int = 1


HistoryPart = TextPart | RefusalPart | ImagePart | FilePart | AudioPart | SpeechPart | VideoPart


class Message(_HistoryStruct, frozen=True, tag=True):
    """
    A message of one side.

    Attributes:
        phase: distinguishes commentary from the final answer, for models that do.
        played_ms: of a spoken answer that was interrupted, how much was heard; its text ends there too.
    """

    role: Role
    parts: tuple[HistoryPart, ...]
    phase: Phase | None = None
    played_ms: int | None = None


class ReasoningItem(_HistoryStruct, frozen=True, tag=True):
    """Reasoning of an earlier response: text and summary if known, and the engine's own encrypted form."""

    text: str = ""
    summary: tuple[str, ...] = ()
    encrypted_content: str | None = None


class ToolCall(_HistoryStruct, frozen=True, tag=True):
    """A tool call by the assistant. `arguments` is JSON text, or the free text of a custom tool."""

    call_id: str
    name: str
    arguments: str
    custom: bool = False
    namespace: str | None = None


class ToolResult(_HistoryStruct, frozen=True, tag=True):
    """The output of a tool call."""

    call_id: str
    parts: tuple[HistoryPart, ...]


class HostedToolItem(_HistoryStruct, frozen=True, tag=True):
    """
    The item that a hosted tool left, as in the Responses API, with its `type`; for an engine that knows such items.
    """

    item: dict[str, Any]


HistoryItem = Message | ReasoningItem | ToolCall | ToolResult | HostedToolItem
