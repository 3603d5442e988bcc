"""Annotations that name places in a text, moved to where these are after the text was rewritten."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """The characters from `start` to before `end` were replaced by `size` others."""

    start: int
    end: int
    size: int


Edits = Sequence[Edit]
"""What was done to a text, in order of place; the places are those before any of it was done."""

_Annotation = dict[str, Any]


def move_by_edits(annotations: Sequence[_Annotation], edits: Edits) -> list[_Annotation]:
    """
    The annotations after known edits.

    A place whose ends lie in no replacement moves with the text around it, and grows and shrinks with what is replaced
    within; where an end was replaced, the annotation reaches to the end of the replacement. One of which nothing is left
    is dropped.
    """
    places = [_place_of(annotation) for annotation in annotations]
    positions = sorted({position for place in places if place is not None for position in place})
    moves = _move_positions(positions, edits)
    result = []
    for annotation, place in zip(annotations, places, strict=True):
        if place is None:
            result.append(annotation)
            continue
        start, end = moves[place[0]][0], moves[place[1]][1]
        if end > start:
            result.append({**annotation, "start_index": start, "end_index": end})
    return result


def move_by_words(annotations: Sequence[_Annotation], before: str, after: str) -> list[_Annotation]:
    """
    The annotations after a text was written anew: an annotation follows its words if they stand in the new text, as often
    as before or once; otherwise it is dropped, as it would annotate something else.
    """
    result = []
    for annotation in annotations:
        place = _place_of(annotation)
        if place is None:
            result.append(annotation)
            continue
        words = before[place[0] : place[1]]
        start = _find_words(words, before[: place[0]].count(words), before, after) if words.strip() else -1
        if start >= 0:
            result.append({**annotation, "start_index": start, "end_index": start + len(words)})
    return result


def _find_words(words: str, number: int, before: str, after: str) -> int:
    """Where those words are that were the `number`-th of their kind in the old text, from 0; -1 if that is not certain."""
    count = after.count(words)
    if count != before.count(words):
        return after.find(words) if count == 1 else -1
    start = -1
    for _ in range(number + 1):
        start = after.find(words, start + len(words) if start >= 0 else 0)
    return start


def _place_of(annotation: _Annotation) -> tuple[int, int] | None:
    """The start and end of an annotation; None for one of the whole text."""
    start, end = annotation.get("start_index"), annotation.get("end_index")
    return (start, max(start, end)) if isinstance(start, int) and isinstance(end, int) and start >= 0 else None


def _move_positions(positions: Sequence[int], edits: Edits) -> dict[int, tuple[int, int]]:
    """Where each position is afterwards, as the start and as the end of a place: what is inserted there is outside of it."""
    moves: dict[int, tuple[int, int]] = {}
    index, shift = 0, 0
    for position in positions:
        inserted_size = 0
        while index < len(edits) and edits[index].end <= position:
            edit = edits[index]
            shift += edit.size - (edit.end - edit.start)
            inserted_size += edit.size if edit.start == position else 0
            index += 1
        if index < len(edits) and edits[index].start < position:  # Within what was replaced.
            edit = edits[index]
            moves[position] = (edit.start + shift, edit.start + shift + edit.size)
        else:
            moves[position] = (position + shift, position + shift - inserted_size)
    return moves
