"""
The reasoning of earlier answers: what the `signature` of a block contains, and how it is read when it comes back.

A client sends every block back as it came. Its signature has, encrypted, what else the model needs of the reasoning: the
engine's own form of it, and the text where the client was not shown it. A signature that this server did not make is
that of another model: the block is left out, as the original leaves out what its model can't use.
"""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from antiphon.engine_api.history import ReasoningItem

Sign = Callable[[bytes], str | None]
"""Makes a signature of its content; None where that is too long."""

Unsign = Callable[[str], bytes | None]
"""The content of a signature; None where this server did not make it, for this tenant."""

UNSIGNED = "unsigned"
"""
The signature of reasoning that is too long to be signed. It must not be empty: clients drop a block without one.
"""


class SignedThinking(Struct, omit_defaults=True):
    """
    The content of a signature.

    Attributes:
        text: of the reasoning, where it is not in the block.
        encrypted_content: the engine's own form of it.
    """

    text: str = ""
    encrypted_content: str | None = None


_decode = msgspec.json.Decoder(SignedThinking).decode


def sign_thinking(sign: Sign, text: str, encrypted_content: str | None, *, is_shown: bool) -> str:
    """The signature of a block, which has the text itself if that is shown."""
    return sign(msgspec.json.encode(SignedThinking("" if is_shown else text, encrypted_content))) or UNSIGNED


def read_thinking(thinking: str, signature: str, unsign: Unsign, *, reads_encrypted: bool) -> ReasoningItem | None:
    """
    The reasoning of a block that came back; None where another model made it, or nothing of it can be read.

    Args:
        reads_encrypted: whether the engine reads its own form of reasoning.
    """
    if signature in ("", UNSIGNED):
        return ReasoningItem(thinking) if thinking else None
    content = unsign(signature)
    if content is None:
        return None
    try:
        signed_thinking = _decode(content)
    except msgspec.DecodeError:
        return None
    item = ReasoningItem(thinking or signed_thinking.text, encrypted_content=signed_thinking.encrypted_content if reads_encrypted else None)
    return item if item.text or item.encrypted_content else None
