"""
Puts a whole answer together from the chunks of a stream, with all the fields that they have: those that this server
does not know as well.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.errors import UpstreamError
from antiphon.wire.codec.types import JsonDict

_FIRST = ("id", "type", "role")
"""What a part says once, though some servers repeat it with each of its pieces."""

_LATEST = ("finish_reason", "stop_reason")
_CHUNK_ONLY = ("choices", "object", "usage", "obfuscation")


class _Text(list[str]):
    """A text in pieces: joined at the end, as to append to a long string copies it."""


class Assembly:
    """The answer to one request, as far as its chunks are there."""

    def __init__(self) -> None:
        self._head: JsonDict = {}
        self._choices: dict[int, JsonDict] = {}
        self._usage: object = None
        self._is_chat = True

    def add(self, chunk: bytes) -> None:
        """
        Take the next chunk.

        Raises:
            UpstreamError: it is none.
        """
        try:
            fields = msgspec.json.decode(chunk, type=JsonDict)
            choices = msgspec.convert(fields["choices"], list[JsonDict])
            indices = msgspec.convert([choice["index"] for choice in choices], list[int])
        except (KeyError, ValueError, RecursionError) as error:
            raise UpstreamError(f"The model server sent what is no answer: {error}.", code="upstream_malformed") from None
        self._is_chat = fields.get("object") != "text_completion"
        self._usage = fields.get("usage") or self._usage
        for key, value in fields.items():
            if key not in _CHUNK_ONLY and (value is not None or key not in self._head):
                self._head[key] = value
        for index, choice in zip(indices, choices, strict=True):
            _merge(self._choices.setdefault(index, {}), choice)

    def result(self) -> bytes:
        """The JSON of the whole answer."""
        head = {**self._head, "object": "chat.completion" if self._is_chat else "text_completion"}
        choices = [self._choice(choice) for _, choice in sorted(self._choices.items())]
        return msgspec.json.encode({**head, "choices": choices, "usage": self._usage})

    def _choice(self, choice: JsonDict) -> JsonDict:
        fields: JsonDict = _join(choice)
        if not self._is_chat:
            return fields
        message = {"role": "assistant", "content": None, **(fields.pop("delta", None) or {})}
        if calls := message.get("tool_calls"):
            message["content"] = message["content"] or None
            message["tool_calls"] = [{key: value for key, value in call.items() if key != "index"} for call in calls]
        return {"index": fields.pop("index"), "message": message, "logprobs": None, "finish_reason": None, **fields}


def _merge(into: JsonDict, piece: Mapping[str, Any]) -> None:
    for key, value in piece.items():
        present = into.get(key)
        match value:
            case None:
                into.setdefault(key, None)
            case dict():
                present = into[key] = present if isinstance(present, dict) else {}
                _merge(present, value)
            case list():
                present = into[key] = present if isinstance(present, list) else []
                _extend(present, value)
            case str() if key not in _LATEST:
                into[key] = _append(key, present, value)
            case _:
                into[key] = value


def _append(key: str, present: object, piece: str) -> _Text:
    if not isinstance(present, _Text):
        return _Text([piece])
    # A name comes in pieces from some servers, and whole in every chunk from others.
    if key not in _FIRST and not (key == "name" and piece == "".join(present)):
        present.append(piece)
    return present


def _extend(into: list[Any], values: list[Any]) -> None:
    """Add elements to a list: a piece of one that is there already, which its `index` says, to that."""
    for value in values:
        if not isinstance(value, dict):
            into.append(value)
            continue
        index = value.get("index")
        place = {} if index is None else next((each for each in into if isinstance(each, dict) and each.get("index") == index), {})
        if not place:
            into.append(place)
        _merge(place, value)


def _join(value: Any) -> Any:
    """A value with its texts in one piece."""
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, dict):
        return {key: _join(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_join(each) for each in value]
    return value
