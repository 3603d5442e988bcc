"""The messages of a chat, with their parts and tool calls."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import UNSET, Meta

from antiphon.wire.codec.types import Maybe, Tagged, Wire
from antiphon.wire.responses.parts import AudioClip, FileBase64, ImageDetail, ImageUrl, LongText, PromptCacheBreakpoint

# Parts


class ChatText(Tagged, kw_only=True, tag="text"):
    """Text."""

    null_is_absent = True

    text: LongText
    prompt_cache_breakpoint: Maybe[PromptCacheBreakpoint] = UNSET


class ImageReference(Wire, kw_only=True):
    """An image by its http(s) or data URL."""

    null_is_absent = True

    url: ImageUrl
    detail: Maybe[ImageDetail] = UNSET


class ChatImage(Tagged, kw_only=True, tag="image_url"):
    """An image for the model."""

    image_url: ImageReference
    prompt_cache_breakpoint: Maybe[PromptCacheBreakpoint] = UNSET


class ChatAudio(Tagged, kw_only=True, tag="input_audio"):
    """A recording for the model."""

    input_audio: AudioClip
    prompt_cache_breakpoint: Maybe[PromptCacheBreakpoint] = UNSET


class FileReference(Wire, kw_only=True):
    """A document: an uploaded file, or whole in base64 or as a data URL (`file_data`)."""

    file_id: Maybe[str] = UNSET
    file_data: Maybe[FileBase64] = UNSET
    filename: Maybe[str] = UNSET


class ChatFile(Tagged, kw_only=True, tag="file"):
    """A document for the model."""

    file: FileReference
    prompt_cache_breakpoint: Maybe[PromptCacheBreakpoint] = UNSET


class ChatRefusal(Tagged, kw_only=True, tag="refusal"):
    """The text with which the model refused."""

    refusal: str


ChatPart = ChatText | ChatImage | ChatAudio | ChatFile | ChatRefusal
ChatContent = LongText | list[ChatPart]

# Tool calls


class CalledFunction(Wire, kw_only=True):
    """A function's name, and its arguments as JSON text."""

    name: str
    arguments: str


class CalledTool(Wire, kw_only=True):
    """A custom tool's name, and its input as free text."""

    name: str
    input: str


class ChatFunctionCall(Tagged, kw_only=True, tag="function"):
    """A call of a function."""

    id: str
    function: CalledFunction

    @classmethod
    def takes_untyped(cls, fields: Mapping[str, object]) -> bool:
        """Whether it is a call: several programs leave the type out."""
        return "function" in fields


class ChatCustomCall(Tagged, kw_only=True, tag="custom"):
    """A call of a custom tool."""

    id: str
    custom: CalledTool


ChatToolCall = ChatFunctionCall | ChatCustomCall


class AudioReference(Wire, kw_only=True):
    """An earlier spoken answer, by its id."""

    id: str


# Messages


class _Message(Wire, kw_only=True, tag_field="role"):
    null_is_absent = True

    name: Maybe[str] = UNSET


class ChatSystemMessage(_Message, kw_only=True, tag="system"):
    """Instructions."""

    content: ChatContent


class ChatDeveloperMessage(_Message, kw_only=True, tag="developer"):
    """Instructions, under their newer name."""

    content: ChatContent


class ChatUserMessage(_Message, kw_only=True, tag="user"):
    """What the user says."""

    content: ChatContent


class ChatAssistantMessage(_Message, kw_only=True, tag="assistant"):
    """
    What the model answered earlier. `reasoning_content`, in some programs `reasoning`, is what it thought before. Only a
    text is used: some programs send objects there.
    """

    content: Maybe[ChatContent] = UNSET
    refusal: Maybe[str] = UNSET
    audio: Maybe[AudioReference] = UNSET
    tool_calls: Maybe[list[ChatToolCall]] = UNSET
    function_call: Maybe[CalledFunction] = UNSET
    reasoning_content: Maybe[object] = UNSET
    reasoning: Maybe[object] = UNSET


class ChatToolMessage(_Message, kw_only=True, tag="tool"):
    """What a tool answered to a call."""

    content: ChatContent
    tool_call_id: str


class ChatFunctionMessage(_Message, kw_only=True, tag="function"):
    """What a function answered, in the form from before tools; `name` is the function's."""

    content: Maybe[ChatContent] = UNSET


ChatMessage = ChatSystemMessage | ChatDeveloperMessage | ChatUserMessage | ChatAssistantMessage | ChatToolMessage | ChatFunctionMessage
Messages = Annotated[list[ChatMessage], Meta(min_length=1)]
