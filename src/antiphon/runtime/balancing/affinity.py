"""
Which requests belong together, so that the upstream that has computed their beginning before gets them again.

The key has the tenant in it: otherwise one tenant could find out by the time to the first token what another has asked.
"""

import re
from hashlib import blake2b

import msgspec
from msgspec import Struct

from antiphon.engine_api import commands, history
from antiphon.engine_api.options import ConversationSettings

MAX_TEXT_CHARS = 2048
"""How much of the beginning of a conversation counts."""

_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*")
"""Claude Code's first line of instructions, which differs in every request."""


class _RelayedRequest(Struct):
    messages: list[msgspec.Raw] | None = None
    prompt: msgspec.Raw | None = None


_relay_decoder = msgspec.json.Decoder(_RelayedRequest)

_USER_ROLE = re.compile(rb'"role"\s*:\s*"user"')


def affinity_key(settings: ConversationSettings, request: commands.Respond | commands.Relay) -> str:
    """The key of a request: what its client says belongs together, or else the beginning of its conversation."""
    if settings.cache_key:
        parts = ["key", settings.cache_key]
    elif isinstance(request, commands.Respond):
        parts = ["text", *_beginning(request)]
    else:
        parts = ["body", request.path, _body_beginning(request.body)]
    digest = blake2b(digest_size=16)
    for part in (settings.tenant, settings.model, *parts):
        # The zero byte keeps the parts apart: "ab" and "c" are another key than "a" and "bc".
        digest.update(part.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()


def _beginning(request: commands.Respond) -> list[str]:
    """Instructions, tools, and the first message of the user: what all requests of a conversation begin with."""
    parts = [_without_billing(request.instructions or ""), ",".join(tool.name for tool in request.tools)]
    for item in request.history:
        if isinstance(item, history.Message):
            parts.append(f"{item.role}:{_message_text(item)}")
            if item.role == "user":
                break
    return parts


def _message_text(message: history.Message) -> str:
    texts: list[str] = []
    for part in message.parts:
        match part:
            case history.TextPart(text):
                texts.append(_without_billing(text))
            case history.ImagePart(url=str(url)):
                # A picture may come as a data URL of megabytes; its beginning tells it from others.
                texts.append(url[:MAX_TEXT_CHARS])
            case _:
                texts.append(type(part).__name__)
        if sum(map(len, texts)) > MAX_TEXT_CHARS:
            break
    return "".join(texts)[:MAX_TEXT_CHARS]


def _without_billing(text: str) -> str:
    return _BILLING.sub("", text[:MAX_TEXT_CHARS])


def _body_beginning(body: bytes) -> str:
    """The messages of a request's JSON up to the user's first one, or the beginning of its prompt."""
    try:
        request = _relay_decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError):  # its server will say what is wrong with it
        return ""
    texts: list[str] = []
    for raw_message in request.messages or ():
        message = bytes(raw_message)
        texts.append(message[:MAX_TEXT_CHARS].decode(errors="replace"))
        if _USER_ROLE.search(message):
            break
    return "".join(texts) or bytes(request.prompt or b"")[:MAX_TEXT_CHARS].decode(errors="replace")
