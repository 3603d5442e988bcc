"""
What clients give back in encrypted form: reasoning, because they keep the conversation themselves (`store: false`), and
compactions, which stand for what came before them.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

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
    purpose: Literal["reasoning", "compaction"]
    is_input: bool


async def decrypt_items(
    input_items: Sequence[items.Item],
    previous_items: Sequence[items.Item],
    get_cipher: GetCipher,
    tenant: str,
    *,
    engine_encrypts: bool,
    engine_compacts: bool = False,
) -> Mapping[str, str]:
    """
    The texts of the encrypted items in a conversation from its newest compaction on, by encrypted content.

    Args:
        engine_encrypts: whether the engine reads encrypted reasoning of its own. Whatever is not this server's is left
            to it.
        engine_compacts: whether it reads compactions of its own.

    Raises:
        ClientError: content in the request can't be read: it was changed, or was not made here for this tenant.
    """
    start = items.newest_compaction([*previous_items, *input_items]) - len(previous_items)
    entries = [*_entries(input_items, max(start, 0), is_input=True)]
    if start < 0:
        entries += _entries(previous_items, start + len(previous_items), is_input=False)
    if not entries:
        return {}
    cipher = await get_cipher()

    def decrypt_all() -> Mapping[str, str]:
        texts: dict[str, str] = {}
        for path, content, purpose, is_input in entries:
            if content in texts:
                continue
            is_upstreams = engine_compacts if purpose == "compaction" else engine_encrypts or not is_input
            if is_upstreams and not cipher.knows_key(content):
                continue  # its own model reads it; others don't miss reasoning
            texts[content] = cipher.decrypt(content, tenant, purpose, path).decode()
        return texts

    return await offload(sum(len(entry.content) for entry in entries), decrypt_all)


def _entries(conversation: Sequence[items.Item], start: int, *, is_input: bool) -> Iterator[_Entry]:
    for index, item in enumerate(conversation[start:], start):
        if not isinstance(item, items.Reasoning | items.Compaction) or not item.encrypted_content:
            continue
        path = f"input[{index}].encrypted_content" if is_input else "previous_response_id"
        if len(item.encrypted_content) > items.MAX_ENCRYPTED_CHARACTERS:
            raise too_long(path, "string", items.MAX_ENCRYPTED_CHARACTERS, len(item.encrypted_content))
        # What is stored has its text beside it, as it was sent: that can be read whatever becomes of the keys.
        if isinstance(item, items.Compaction):
            yield _Entry(path, item.encrypted_content, "compaction", is_input)
        elif is_input or not item.content:
            yield _Entry(path, item.encrypted_content, "reasoning", is_input)
