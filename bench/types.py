"""
How fast are antiphon's wire types compared with openai-python's, in the same run?

Two messages are decoded from JSON and encoded again: a delta, as one type of the union of all events, and a request of 2.8 KB. The figures
are CPU time of this process, the best of several rounds; the ratio is how many times as fast antiphon is.

    python bench/types.py
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import json
import time
from collections.abc import Callable
from typing import NamedTuple

from openai._models import construct_type
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.responses_client_event import ResponseCreate
from pydantic import TypeAdapter

from antiphon.wire.responses.events import OutputTextDelta, decode_event, encode_event
from antiphon.wire.responses.request import decode_request, encode_request
from measuring import print_head, print_row

ROUNDS = 7
SECONDS = 0.05

DELTA = encode_event(
    OutputTextDelta(
        sequence_number=42,
        item_id="msg_68af2f60c3a081919b40c91c6b50e2f4",
        output_index=0,
        content_index=0,
        delta=" fugue",
        obfuscation="x8Kq2mPz",
    )
)


def tool(name: str, **properties: str) -> dict[str, object]:
    schema = {name: {"type": kind, "description": f"The {name} that is meant."} for name, kind in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": list(properties), "additionalProperties": False}
    return {
        "type": "function",
        "name": name,
        "description": f"Use it to {name.replace('_', ' ')}.",
        "parameters": parameters,
        "strict": True,
    }


def message(role: str, text: str) -> dict[str, object]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


REQUEST = json.dumps(
    {
        "model": "some-model",
        "instructions": "You help people who sing together. " * 8,
        "input": [
            message("user", "Which voices does a madrigal need, and who could sing the lowest of them next week? " * 3),
            {"type": "function_call", "call_id": "call_1", "name": "find_singers", "arguments": '{"voice":"bass","week":"2026-W48"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": '["Anselm","Berthe","Clément"]'},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Three could. " * 6, "annotations": []}],
            },
            message("user", "Ask the first of them."),
        ],
        "tools": [
            tool("find_singers", voice="string", week="string", town="string"),
            tool("write_letter", to="string", subject="string", text="string"),
            tool("book_room", day="string", hour="integer", seats="integer"),
        ],
        "tool_choice": "auto",
        "temperature": 0.7,
        "max_output_tokens": 1024,
        "metadata": {"choir": "antiphon"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "store": True,
        "stream": True,
    },
    ensure_ascii=False,
    separators=(",", ":"),
).encode()


class Row(NamedTuple):
    what: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    min_ratio: float


def rows() -> list[Row]:
    events: TypeAdapter[object] = TypeAdapter(ResponseStreamEvent)
    requests: TypeAdapter[object] = TypeAdapter(ResponseCreate)
    typed_request = REQUEST[:-1] + b',"type":"response.create"}'
    return [
        Row(
            "a delta, compared with the SDK's default (construct)",
            lambda: encode_event(decode_event(DELTA)),
            lambda: construct_type(type_=ResponseStreamEvent, value=json.loads(DELTA)).model_dump_json(),
            50,
        ),
        Row(
            "a delta, compared with validation",
            lambda: encode_event(decode_event(DELTA)),
            lambda: events.dump_json(events.validate_json(DELTA)),
            50,
        ),
        Row(
            f"a request of {len(REQUEST) / 1000:.1f} KB, compared with validation",
            lambda: encode_request(decode_request(REQUEST)),
            lambda: requests.dump_json(requests.validate_json(typed_request), exclude_unset=True),
            15,
        ),
    ]


def microseconds(work: Callable[[], object]) -> float:
    """CPU time of one `work`, the best of several rounds."""
    count, best = 1, float("inf")
    for _ in range(ROUNDS):
        while (spent := _spent(work, count)) < SECONDS:
            count *= 2
        best = min(best, spent / count * 1e6)
    return best


def _spent(work: Callable[[], object], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        work()
    return time.process_time() - start


def main() -> int:
    """Print a line for each comparison; exit code 1 if a ratio is too low."""
    are_fast = True
    print_head("", "antiphon", "openai-python", "speed", "at least")
    for row in rows():
        ours, theirs = microseconds(row.ours), microseconds(row.theirs)
        are_fast &= theirs / ours >= row.min_ratio
        print_row(row.what, f"{ours:.2f} µs", f"{theirs:.1f} µs", f"{theirs / ours:.0f}x", f"{row.min_ratio:.0f}x")
    return 0 if are_fast else 1


if __name__ == "__main__":
    sys.exit(main())
