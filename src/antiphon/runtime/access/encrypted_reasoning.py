"""
Reasoning that clients give back in encrypted form, because they keep the conversation themselves (`store: false`).
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from antiphon.errors import too_long
from antiphon.offload import offload
from antiphon.wire.responses import items

if TYPE_CHECKING:
    from antiphon.runtime.core.encrypted_content import ContentCipher

GetCipher = Callable[[], Awaitable["ContentCipher"]]
"""The server's cipher, which is loaded when it is first needed."""


class _Entry(NamedTuple):
    """The encrypted content of one item; `is_input` if the item is in the request itself."""

    path: str
    content: str
    is_input: bool


async def decrypt_reasoning(
    input_items: Iterable[items.Item],
    previous_items: Iterable[items.Item],
    get_cipher: GetCipher,
    tenant: str,
    *,
    engine_encrypts: bool,
) -> Mapping[str, str]:
    """
    The text of the encrypted reasoning in a conversation, by encrypted content.

    Args:
        engine_encrypts: whether the engine reads encrypted content of its own. Whatever is not this server's is left
            to it.

    Raises:
        ClientError: content in the request can't be read: it was changed, or was not made here for this tenant.
    """
    entries = [*_entries(input_items, is_input=True), *_entries(previous_items, is_input=False)]
    if not entries:
        return {}
    cipher = await get_cipher()

    def decrypt_all() -> Mapping[str, str]:
        texts: dict[str, str] = {}
        for path, content, is_input in entries:
            if content in texts:
                continue
            if (engine_encrypts or not is_input) and not cipher.knows_key(content):
                continue  # of an upstream server; its own model reads it, others don't miss it
            texts[content] = cipher.decrypt(content, tenant, "reasoning", path).decode()
        return texts

    return await offload(sum(len(entry.content) for entry in entries), decrypt_all)


def _entries(conversation: Iterable[items.Item], *, is_input: bool) -> Iterator[_Entry]:
    for index, item in enumerate(conversation):
        if not isinstance(item, items.Reasoning) or not item.encrypted_content:
            continue
        path = f"input[{index}].encrypted_content" if is_input else "previous_response_id"
        if len(item.encrypted_content) > items.MAX_ENCRYPTED_CHARACTERS:
            raise too_long(path, "string", items.MAX_ENCRYPTED_CHARACTERS, len(item.encrypted_content))
        # What is stored has its text beside it, as it was sent: that can be read whatever becomes of the keys.
        if is_input or not item.content:
            yield _Entry(path, item.encrypted_content, is_input)
