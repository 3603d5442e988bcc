"""Where the results of calls stand in a history: right after their calls, as servers of models take them nowhere else."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from antiphon.engine_api.history import HistoryItem, Message, TextPart, ToolCall, ToolResult

NO_RESULT_TEXT = "There is no result yet."
"""What a model reads in place of a result that comes later, or not at all."""

_LATER = "_later"
_MAX_CALL_ID_CHARACTERS = 64
"""The Responses API refuses longer ones."""


def are_in_place(history_items: Sequence[HistoryItem]) -> bool:
    """Whether every call has its result, once, before anything else is said."""
    open_ids: set[str] = set()
    for item in history_items:
        if isinstance(item, ToolCall):
            open_ids.add(item.call_id)
        elif isinstance(item, ToolResult):
            if item.call_id not in open_ids:
                return False
            open_ids.discard(item.call_id)
        elif open_ids:
            return False
    return not open_ids


def place_results(history_items: Sequence[HistoryItem]) -> Iterator[HistoryItem]:
    """
    The history with the results of calls right behind them, parallel calls together.

    A user goes on speaking while a function runs: what was said before the result comes before the call then, so that the
    result stays the last that the model reads. But where the model has answered meanwhile, it did so without the result:
    then the call has a note in its place, and the result stands where it came, behind a call of its own. Otherwise the
    model would be asked to go on after its own answer, and that answer would look as if it had known the result.

    Clients may send a result again, which is left out.
    """
    results = _prompt_results(history_items)
    prompt_indexes = set(results.values())
    latest_calls: dict[str, ToolCall] = {}
    latest_results: dict[str, HistoryItem] = {}
    group: list[int] = []
    for index in (*_order(history_items, results), None):
        item = None if index is None else history_items[index]
        if index is not None and isinstance(item, ToolCall):
            group.append(index)
            latest_calls[item.call_id] = item
            latest_results.pop(item.call_id, None)
            yield item
            continue
        for call_index in group:
            call = history_items[call_index]
            assert isinstance(call, ToolCall)
            result = history_items[results[call_index]] if call_index in results else ToolResult(call.call_id, (TextPart(NO_RESULT_TEXT),))
            latest_results[call.call_id] = result
            yield result
        group = []
        if item is None or index in prompt_indexes:
            continue
        if not isinstance(item, ToolResult) or item.call_id not in latest_calls:
            yield item
        elif latest_results.get(item.call_id) != item:
            latest_results[item.call_id] = item
            late_id = item.call_id[: _MAX_CALL_ID_CHARACTERS - len(_LATER)] + _LATER
            yield structs.replace(latest_calls[item.call_id], call_id=late_id)
            yield structs.replace(item, call_id=late_id)


def _is_input(item: HistoryItem) -> bool:
    return isinstance(item, ToolResult) or (isinstance(item, Message) and item.role != "assistant")


def _order(history_items: Sequence[HistoryItem], results: Mapping[int, int]) -> Iterator[int]:
    """The indexes of the items, what was said before a result in time ahead of what the model said with its call."""
    turn: list[int] = []
    inputs: list[int] = []
    for index, item in enumerate(history_items):
        if _is_input(item):
            inputs.append(index)
            continue
        if inputs:
            yield from _turn_order(history_items, turn, inputs, results)
            turn, inputs = [], []
        turn.append(index)
    yield from _turn_order(history_items, turn, inputs, results)


def _turn_order(history_items: Sequence[HistoryItem], turn: list[int], inputs: list[int], results: Mapping[int, int]) -> Iterator[int]:
    last_result = max((results[index] for index in turn if index in results), default=-1)

    def is_early(index: int) -> bool:
        return index < last_result and not isinstance(history_items[index], ToolResult)

    yield from filter(is_early, inputs)
    yield from turn
    yield from (index for index in inputs if not is_early(index))


def _prompt_results(history_items: Sequence[HistoryItem]) -> dict[int, int]:
    """
    The indexes of calls and of their results that came before the model said more. What it says at a time ends with the
    next input. By indexes, as some models give the calls of each response the same ids again.
    """
    results: dict[int, int] = {}
    waiting: dict[str, int] = {}
    is_models_turn = False
    for index, item in enumerate(history_items):
        is_input = _is_input(item)
        if not is_input and not is_models_turn:
            waiting.clear()
        is_models_turn = not is_input
        if isinstance(item, ToolCall):
            waiting[item.call_id] = index
        elif isinstance(item, ToolResult) and (call_index := waiting.pop(item.call_id, None)) is not None:
            results[call_index] = index
    return results
