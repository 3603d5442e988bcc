"""Where the results of calls stand in a history: right after their calls, as servers of models take them nowhere else."""

from collections.abc import Iterator, Sequence

from msgspec import structs

from antiphon.engine_api.history import HistoryItem, Message, TextPart, ToolCall, ToolResult

NO_RESULT_TEXT = "There is no result yet."
"""What a model reads in place of a result that comes later, or not at all."""

_LATER = "_later"
_MAX_CALL_ID_CHARACTERS = 64
"""The Responses API refuses longer ones."""


def are_in_place(history_items: Sequence[HistoryItem]) -> bool:
    """Whether every call has its result before anything else is said."""
    open_ids: set[str] = set()
    for item in history_items:
        if isinstance(item, ToolCall):
            open_ids.add(item.call_id)
        elif isinstance(item, ToolResult):
            open_ids.discard(item.call_id)
        elif open_ids:
            return False
    return not open_ids


def place_results(history_items: Sequence[HistoryItem]) -> Iterator[HistoryItem]:
    """
    The history with the results of calls right behind them, parallel calls together.

    A user goes on speaking while a function runs, so a result moves up to its call. But where the model has answered
    meanwhile, it did so without the result: then the call has a note in its place, and the result stands where it came,
    behind a call of its own. Otherwise the model would be asked to go on after its own answer, and that answer would
    look as if it had known the result.
    """
    results = _prompt_results(history_items)
    prompt_indexes = set(results.values())
    late_calls: dict[str, ToolCall] = {}
    group: list[int] = []
    for index, item in enumerate((*history_items, None)):
        if isinstance(item, ToolCall):
            group.append(index)
            yield item
            continue
        for call, call_index in ((history_items[each], each) for each in group):
            assert isinstance(call, ToolCall)
            if call_index in results:
                yield history_items[results[call_index]]
            else:
                late_calls[call.call_id] = call
                yield ToolResult(call.call_id, (TextPart(NO_RESULT_TEXT),))
        group = []
        if isinstance(item, ToolResult) and index not in prompt_indexes and (late_call := late_calls.pop(item.call_id, None)) is not None:
            late_id = item.call_id[: _MAX_CALL_ID_CHARACTERS - len(_LATER)] + _LATER
            yield structs.replace(late_call, call_id=late_id)
            yield structs.replace(item, call_id=late_id)
        elif item is not None and index not in prompt_indexes:
            yield item


def _prompt_results(history_items: Sequence[HistoryItem]) -> dict[int, int]:
    """
    The indexes of calls and of their results that came before the model said more. What it says at a time ends with the
    next input. By indexes, as some models give the calls of each response the same ids again.
    """
    results: dict[int, int] = {}
    waiting: dict[str, int] = {}
    is_models_turn = False
    for index, item in enumerate(history_items):
        is_input = isinstance(item, ToolResult) or (isinstance(item, Message) and item.role != "assistant")
        if not is_input and not is_models_turn:
            waiting.clear()
        is_models_turn = not is_input
        if isinstance(item, ToolCall):
            waiting[item.call_id] = index
        elif isinstance(item, ToolResult) and (call_index := waiting.pop(item.call_id, None)) is not None:
            results[call_index] = index
    return results
