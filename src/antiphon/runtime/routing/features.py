"""What of a request decides where it goes, whichever protocol it came in."""

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property

from msgspec import Struct

from antiphon.engine_api.capabilities import Capabilities
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.language import detect_language

MAX_TEXT_CHARACTERS = 32_768
"""How much of the last user message rules read: its beginning and its end, half each."""

LATIN_BYTES_PER_TOKEN = 3.6
CJK_TOKENS_PER_CHARACTER = 2
TOKENS_PER_IMAGE = 800

_CLASSIFIED_HEAD, _CLASSIFIED_TAIL = 200, 100

_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")

FINGERPRINT_CHARACTERS = 2000
"""How much of instructions and of a first message tells conversations apart."""

_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*")
"""Claude Code's first line of instructions, which differs in every request."""

_REMINDER, _REMINDER_END = "<system-reminder>", "</system-reminder>"


class RouteCaller(Struct, frozen=True, kw_only=True):
    """
    Who sends a request.

    Attributes:
        tenant: whose conversations it may go on with.
        key_id: of its key, and the key's name; empty where no key was needed.
    """

    tenant: str = ""
    key_id: str = ""
    key_name: str = ""


def route_caller(caller: Caller) -> RouteCaller:
    """A caller as rules see it."""
    key = caller.key
    return RouteCaller(tenant=caller.tenant, key_id=key.id if key else "", key_name=key.name if key else "")


class RouteFeatures(Struct, frozen=True, kw_only=True):
    """
    What of a request decides where it goes.

    Attributes:
        text: of the last user message, as `last_user_text` cuts it.
        input_tokens: of the whole conversation, as estimated.
        output_tokens: the most that the response may have; 0 where that is not said.
        is_spoken: whether the response is to have audio.
        is_live: whether it is a live conversation, with audio that is yet to come.
        relay_path: of the API whose requests can only be passed on as they come; empty for one that every model answers.
        may_omit_tools: whether custom and hosted tools may be left out for a model that lacks them.
        hosted_tools: their types.
        top_logprobs: alternatives for each token; None where none were requested.
        answered_by: the model of the response that it continues, if that is known.
        continues: what identifies the conversation so far; the surest first.
        begins: what the next turn may be identified by.
    """

    text: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    has_tools: bool = False
    has_function_tools: bool = False
    has_custom_tools: bool = False
    hosted_tools: tuple[str, ...] = ()
    may_omit_tools: bool = True
    has_images: bool = False
    has_audio: bool = False
    has_files: bool = False
    is_spoken: bool = False
    is_live: bool = False
    relay_path: str = ""
    json_object: bool = False
    json_schema: bool = False
    top_logprobs: int | None = None
    answered_by: str | None = None
    continues: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()


class RouteFacts:
    """A request, its caller and the time, as rules see them; what takes a while is found out when a rule asks."""

    def __init__(self, features: RouteFeatures, caller: RouteCaller, now: datetime) -> None:
        self.features = features
        self.caller = caller
        self.now = now

    @cached_property
    def language(self) -> str | None:
        """Of the last user message."""
        return detect_language(self.features.text)


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: Chinese, Japanese and Korean have more of them than their bytes suggest."""
    if text.isascii():
        return round(len(text) / LATIN_BYTES_PER_TOKEN)
    cjk_characters = sum(len(run) for run in _CJK.findall(text))
    rest_bytes = len(text.encode("utf-8", "surrogatepass")) - 3 * cjk_characters
    return round(rest_bytes / LATIN_BYTES_PER_TOKEN) + CJK_TOKENS_PER_CHARACTER * cjk_characters


def last_user_text(texts: Iterable[str]) -> str:
    """
    What the user says, out of the texts of user messages, the latest first: without the blocks that programs add for
    the model (`<system-reminder>`), and without the middle of a text that is too long.
    """
    for message in texts:
        if text := remove_reminders(message).strip():
            half = MAX_TEXT_CHARACTERS // 2
            return text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[:half]}\n{text[-half:]}"
    return ""


def remove_reminders(text: str) -> str:
    """A text without blocks of `<system-reminder>`; one that is not closed goes on to the end."""
    pieces: list[str] = []
    position = 0
    while (start := text.find(_REMINDER, position)) >= 0:
        pieces.append(text[position:start])
        end = text.find(_REMINDER_END, start)
        position = len(text) if end < 0 else end + len(_REMINDER_END)
    return "".join((*pieces, text[position:])) if pieces else text


def classified_text(text: str) -> str:
    """The part of a text that is classified, of about 64 tokens: more takes longer, and tells little more."""
    # Cut first: to split a long text into words takes time, and its middle is left out anyway.
    if len(text) > 4000:
        text = f"{text[:2000]} {text[-2000:]}"
    words = " ".join(text.split())
    return words if len(words) <= _CLASSIFIED_HEAD + _CLASSIFIED_TAIL else f"{words[:_CLASSIFIED_HEAD]} {words[-_CLASSIFIED_TAIL:]}"


def stable_instructions(instructions: str) -> str:
    """The beginning of instructions, as far as it is the same in all requests of a conversation."""
    return _BILLING.sub("", instructions[:FINGERPRINT_CHARACTERS])


def lasting_names(instructions: str, first_text: str, tool_names: Iterable[str], *, cache_key: str = "", session_id: str = "") -> list[str]:
    """
    What a conversation without an id is known by in all its turns, the surest first.

    Args:
        first_text: what the user said first; empty where the conversation is to be known by its session alone.
        cache_key: alone it does not do: applications share one among all their conversations, for their common
            instructions.
        session_id: what the client calls the conversation; also those beside it, which have other instructions.
    """
    instructions, names = stable_instructions(instructions), []
    if session_id:
        names.append(f"session {fingerprint(session_id, instructions)}")
    if first_text:
        names.append(f"beginning {fingerprint(cache_key, instructions, first_text[:FINGERPRINT_CHARACTERS], *tool_names)}")
    return names


def fingerprint(*parts: str) -> str:
    """A short name for a conversation that has no id, made of what stays the same in its turns."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode("utf-8", "surrogatepass")
        # With its length, so that no two lists of parts have the same bytes.
        digest.update(b"%d:" % len(content) + content)
    return digest.hexdigest()[:32]


def missing_ability(features: RouteFeatures, capabilities: Capabilities | None) -> str | None:
    """
    What of the request a model can't do, as the end of a sentence that begins with its name; None if it can do all.

    Args:
        capabilities: of the model; None while it has no worker.
    """
    if capabilities is None:
        return "has no worker now"
    for is_needed, is_there, problem in (
        (features.is_live, capabilities.listens, "takes no live audio"),
        (features.has_images, capabilities.images, "takes no images"),
        (features.has_audio, capabilities.audio_in, "takes no audio"),
        (features.is_spoken, capabilities.audio_out, "does not speak"),
        (features.has_files, capabilities.files, "takes no files"),
        (features.has_function_tools, capabilities.tools, "takes no tools"),
        (features.json_object, capabilities.json_object, "takes no JSON format"),
        (features.json_schema, capabilities.json_schema, "takes no JSON schema"),
        (features.has_custom_tools and not features.may_omit_tools, capabilities.custom_tools, "takes no custom tools"),
    ):
        if is_needed and not is_there:
            return problem
    if features.relay_path and features.relay_path not in capabilities.relays:
        return f"takes no requests for /v1/{features.relay_path}"
    return _missing_count(features, capabilities)


def _missing_count(features: RouteFeatures, capabilities: Capabilities) -> str | None:
    if features.top_logprobs is not None and (
        capabilities.max_top_logprobs is None or features.top_logprobs > capabilities.max_top_logprobs
    ):
        return "reports no such log probabilities"
    if not features.may_omit_tools and (missing := [name for name in features.hosted_tools if name not in capabilities.hosted]):
        return f"takes no tool of the type {missing[0]}"
    window, tokens = capabilities.context_window, features.input_tokens + features.output_tokens
    if window is not None and tokens > window:
        return f"has room for {window} tokens, not {tokens}"
    return None
