"""
Compaction: a summary by the model takes the place of a conversation that has become long.

What must not be lost in other words stays beside the summary as it was: the developer's messages before it, and what is
to be answered after it. All of it together is the encrypted content of the compaction item, so the model's next request
begins as the one that follows the compaction at once.
"""

import contextlib
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from antiphon.engine_api import commands, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.token_estimate import BYTES_PER_TOKEN
from antiphon.engine_api.truncation import History, output_room
from antiphon.errors import ClientError
from antiphon.protocols.responses.history import ItemWithPath, to_history
from antiphon.protocols.responses.tools import TranslationContext
from antiphon.wire.codec.types import encode
from antiphon.wire.responses import items
from antiphon.wire.responses.request import CreateRequest

SUMMARY_PROMPT = """\
Summarize the conversation above, so that you can go on with it from your summary alone: you will not see the rest again.
Say what the user wants, what was decided and done and why, what the tools returned that still matters (names, paths,
numbers, errors, word for word where that counts), and what is left to do. Write only the summary."""

SUMMARY_HEADING = "Summary of our conversation so far, of which only this is left:"
"""
Before the summary that stands for a compacted conversation. It comes as the user's: it repeats what users and tools
said, which must not have a developer's weight.
"""

MAX_WINDOW_SHARE = 0.8
"""The most of the context window that is filled before a conversation is compacted: the next turn must still fit."""

SUMMARY_ROOM_TOKENS = 256
"""And so many tokens are left beside the output, for the request to summarize it."""


MAX_KEPT_SHARE = 0.25
"""What is kept beside a summary for the next requests has at most this share of the threshold, before and after it each."""


class CompactionPlan(Struct, frozen=True, kw_only=True):
    """
    How the conversation of a request is compacted.

    Attributes:
        threshold: it is compacted if the model's input has more tokens than this.
        is_requested: it is compacted in any case, and the model doesn't answer.
        head_count: how many items at the start of the history must not be missing where the summary is written:
            instructions, and an earlier summary.
        prelude: instructions that came as items, such as those of a prompt: they stay, but belong to this request alone.
        developer_messages: what stays before the summary; `newest_turn` is what stays after it, to be answered.
        items_before: what of the former is kept with the summary for the requests that follow; likewise `items_after`.
    """

    threshold: int
    is_requested: bool = False
    head_count: int = 0
    prelude: History = ()
    developer_messages: History = ()
    newest_turn: History = ()
    items_before: tuple[items.Item, ...] = ()
    items_after: tuple[items.Item, ...] = ()

    def history(self, summary: str) -> History:
        """What the model reads instead of the conversation."""
        summary_message = history.Message("user", (history.TextPart(_summary_text(summary)),))
        return (*self.prelude, *self.developer_messages, summary_message, *self.newest_turn)

    def content(self, summary: str) -> str:
        """What the compaction item holds, in plain text."""
        if not self.items_before and not self.items_after:
            return summary
        content = _Content(before=[*map(_raw, self.items_before)], summary=summary, after=[*map(_raw, self.items_after)])
        return _CONTENT_MARK + msgspec.json.encode(content).decode()


class _Content(Struct):
    """What a compaction item stands for; the items are JSON."""

    before: list[msgspec.Raw]
    summary: str
    after: list[msgspec.Raw]


_CONTENT_MARK = "\n"
"""Before a `_Content`; no summary begins with it, as they are stripped."""


def requested_compaction(request: CreateRequest, input_items: Sequence[items.Item]) -> commands.Compaction | None:
    """
    When the request wants its conversation compacted; None for never.

    Raises:
        ClientError: a trigger is not the last item.
    """
    for index, item in enumerate(input_items[:-1]):
        if isinstance(item, items.CompactionTrigger):
            raise ClientError(
                f"Invalid 'input[{index}]': a 'compaction_trigger' must be the last item of the input.",
                code="invalid_value",
                param=f"input[{index}]",
            )
    is_requested = bool(input_items) and isinstance(input_items[-1], items.CompactionTrigger)
    if not is_requested and not request.context_management:
        return None
    # Several entries are allowed; the lowest threshold is reached first.
    thresholds = [entry.compact_threshold for entry in request.context_management or () if entry.compact_threshold]
    return commands.Compaction(min(thresholds, default=None), is_requested)


class Window(Struct, frozen=True):
    """
    The conversation that the model reads.

    Attributes:
        head: what an earlier compaction stands for, up to its summary; empty if there was none.
        rest: all that came after it.
    """

    head: Sequence[ItemWithPath]
    rest: Sequence[ItemWithPath]


def open_window(conversation: Sequence[ItemWithPath], texts: Mapping[str, str]) -> Window:
    """
    What is to be read of a conversation: nothing from before its newest compaction, and what that stands for.

    Args:
        texts: of the compactions that are this server's, by their encrypted content.
    """
    conversation = conversation[items.newest_compaction([item for _, item in conversation]) :]
    path, first = conversation[0] if conversation else ("", None)
    # Another service's compaction stays where it is: only an engine that compacts itself can take it, others refuse it.
    if not isinstance(first, items.Compaction) or (text := texts.get(first.encrypted_content)) is None:
        return Window((), conversation)
    content = _decode_content(text)
    # An error about one of these names the compaction item: it is what the client has sent.
    before = [(path, items.decode_item(bytes(body))) for body in content.before]
    after = [(path, items.decode_item(bytes(body))) for body in content.after]
    summary = items.Message(role="user", content=_summary_text(content.summary))
    return Window([*before, (path, summary)], [*after, *conversation[1:]])


def items_beside_summary(item: items.Item, texts: Mapping[str, str]) -> Sequence[items.Item]:
    """The items that an earlier compaction stands for, beside its summary; `texts` as in `open_window`."""
    window = open_window([("", item)], texts)
    return [other for _, other in (*window.head, *window.rest) if other is not item]


def plan_compaction(
    compaction: commands.Compaction,
    respond: commands.Respond,
    prelude: Sequence[ItemWithPath],
    window: Window,
    context: TranslationContext,
) -> CompactionPlan | None:
    """
    How to compact a conversation; None where no compaction can come of it.

    Args:
        respond: the command for the model, which has the whole window.
        prelude: the request's instructions, where they came as items.
    """
    head_count = len(to_history([*prelude, *window.head], context)) if prelude or window.head else 0
    threshold = _threshold(compaction, respond, context.capabilities)
    if compaction.is_requested:
        return CompactionPlan(threshold=threshold or 0, is_requested=True, head_count=head_count)
    newest = _newest_turn(window.rest)
    # By identity: a message that is equal to the newest may stand earlier in the conversation, too.
    newest_ids = {id(item) for _, item in newest}
    is_rest_empty = all(_stays(item) or id(item) in newest_ids for _, item in window.rest)
    # Where only what must stay is left, a summary would add to the input.
    if threshold is None or is_rest_empty:
        return None
    stays = [pair for pair in (*window.head, *window.rest) if _stays(pair[1]) and id(pair[1]) not in newest_ids]
    developer = _newest_within(stays, threshold)
    # This response reads its turn in any case; kept with the summary, it also fills the window of all that follow.
    is_small = sum(len(encode(item)) for _, item in newest) <= threshold * BYTES_PER_TOKEN * MAX_KEPT_SHARE
    return CompactionPlan(
        threshold=threshold,
        head_count=head_count,
        prelude=to_history(prelude, context),
        developer_messages=to_history(developer, context),
        newest_turn=to_history(newest, context),
        items_before=tuple(item for _, item in developer),
        items_after=tuple(item for _, item in newest) if is_small else (),
    )


def _threshold(compaction: commands.Compaction, respond: commands.Respond, capabilities: Capabilities) -> int | None:
    """The most tokens of an input that is not compacted; None if nothing is said and the window is not known."""
    window = capabilities.context_window
    if window is None:
        return compaction.threshold
    # A client's threshold may be more than this model can read, so the window has the last word.
    most = min(int(MAX_WINDOW_SHARE * window), window - output_room(respond, window) - SUMMARY_ROOM_TOKENS)
    return min(compaction.threshold or most, most)


def _newest_turn(conversation: Sequence[ItemWithPath]) -> Sequence[ItemWithPath]:
    """What is to be answered: the last message, or the results of the last calls with the question that led to them."""
    start = len(conversation)
    if conversation and isinstance(conversation[-1][1], items.Message):
        return conversation[-1:]
    # Backwards: first the outputs, then the calls that they belong to.
    while start > 0 and _is_output(conversation[start - 1][1]):
        start -= 1
    while start > 0 and not isinstance(conversation[start - 1][1], items.Message) and not _is_output(conversation[start - 1][1]):
        start -= 1
    # Reasoning is left out: what decrypts it is not kept.
    calls = [pair for pair in conversation[start:] if not isinstance(pair[1], items.Reasoning)]
    questions = [pair for pair in conversation[:start] if isinstance(pair[1], items.Message) and pair[1].role == "user"]
    # Half of a round trip would be refused: every call needs its output, and every output its call.
    return [*questions[-1:], *calls] if _match(calls) else questions[-1:]


def _match(calls: Sequence[ItemWithPath]) -> bool:
    """Whether these are calls with all their results."""
    call_ids = {getattr(item, "call_id", None) for _, item in calls if not _is_output(item)}
    return call_ids == {getattr(item, "call_id", None) for _, item in calls if _is_output(item)}


def _is_output(item: items.Item) -> bool:
    return item.type.endswith("_output")


def _stays(item: items.Item) -> bool:
    """Whether an item is kept as it is: it has a weight that a summary has not."""
    return isinstance(item, items.AdditionalTools) or (isinstance(item, items.Message) and item.role in ("system", "developer"))


def _newest_within(pairs: Sequence[ItemWithPath], threshold: int) -> Sequence[ItemWithPath]:
    """The newest of these that have room, each once, in their order."""
    room_bytes = threshold * BYTES_PER_TOKEN * MAX_KEPT_SHARE
    by_content: dict[bytes, ItemWithPath] = {}
    # The newest first: where there is no room for all, the oldest instructions are what goes.
    for path, item in reversed(pairs):
        key = encode(item.content if isinstance(item, items.Message) else item)
        if key not in by_content and len(key) <= room_bytes:
            by_content[key] = (path, item)
            room_bytes -= len(key)
    return [*by_content.values()][::-1]


def _summary_text(summary: str) -> str:
    return f"{SUMMARY_HEADING}\n\n{summary}"


def _raw(item: items.Item) -> msgspec.Raw:
    return msgspec.Raw(encode(item))


def _decode_content(text: str) -> _Content:
    if text.startswith(_CONTENT_MARK):
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(text, type=_Content)
    return _Content(before=[], summary=text, after=[])
