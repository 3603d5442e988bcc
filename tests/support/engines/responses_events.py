"""The events of a Responses server, in a short form for tests, and what clients see of an engine's events."""

import itertools
import json

from antiphon.engine_api import events as engine_events
from antiphon.engines.responses.response import ResponsesResponseReader
from antiphon.protocols import output as machine

ID = "resp_1"
USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 12,
}
USED = engine_events.Usage(id=ID, input_tokens=7, output_tokens=5, cached_tokens=2, cache_write_tokens=1, reasoning_tokens=3)


def event(type, **fields):
    return {"type": f"response.{type}", **fields}


def over(status="completed", output=(), **more):
    return event(status, response={"id": "resp_theirs", "status": status, "output": list(output), "usage": USAGE, **more})


def message(text, id="msg_a", **more):
    part = {"type": "output_text", "text": text, "annotations": [], **more}
    return {"type": "message", "id": id, "status": "completed", "role": "assistant", "content": [part]}


def call(name, arguments, call_id="call_a", id="fc_a", **more):
    fields = {"id": id, "call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}
    return {"type": "function_call", **fields, **more}


def opened(item):
    hollow = {"content": [], "arguments": "", "input": "", "summary": []}
    return item | {name: value for name, value in hollow.items() if name in item} | {"status": "in_progress"}


def reasoning(text, id="rs_a", **more):
    return {"type": "reasoning", "id": id, "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}


def frames(events):
    return "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)


def text_deltas(text, id="msg_a", index=0, size=3):
    for start in range(0, len(text), size):
        delta = text[start : start + size]
        yield event("output_text.delta", item_id=id, output_index=index, content_index=0, delta=delta, logprobs=[])


def argument_deltas(text, id="fc_a", index=0, size=4):
    for start in range(0, len(text), size):
        yield event("function_call_arguments.delta", item_id=id, output_index=index, delta=text[start : start + size])


def full_message(text, id="msg_a", index=0, **more):
    whole = message(text, id, **more)
    place = {"item_id": id, "output_index": index, "content_index": 0}
    return [
        event("output_item.added", output_index=index, item=opened(whole)),
        event("content_part.added", **place, part={"type": "output_text", "text": "", "annotations": []}),
        *text_deltas(text, id, index),
        event("output_text.done", **place, text=text, logprobs=[]),
        event("content_part.done", **place, part=whole["content"][0]),
        event("output_item.done", output_index=index, item=whole),
    ]


def full_call(name, arguments, index=0, id="fc_a", call_id="call_a", **more):
    whole = call(name, arguments, call_id, id, **more)
    return [
        event("output_item.added", output_index=index, item=opened(whole)),
        *argument_deltas(arguments, id, index),
        event("function_call_arguments.done", item_id=id, output_index=index, arguments=arguments, name=name),
        event("output_item.done", output_index=index, item=whole),
    ]


def full_reasoning(text, index=0, id="rs_a", name="reasoning_text", **more):
    place = {"item_id": id, "output_index": index, "content_index": 0}
    return [
        event("output_item.added", output_index=index, item=opened(reasoning(text, id))),
        event(f"{name}.delta", **place, delta=text[:2]),
        event(f"{name}.delta", **place, delta=text[2:]),
        event(f"{name}.done", **place, text=text),
        event("output_item.done", output_index=index, item=reasoning(text, id, **more)),
    ]


def words_of(events, offered=(), keeps_ids=False):
    """All that a reader makes of events."""
    reading = ResponsesResponseReader(ID, {tool.key.replace(".", "__"): tool for tool in offered}, keeps_ids)
    words = []
    is_over = reading.read([json.dumps(each).encode() for each in events], words)
    assert is_over == isinstance(words[-1], engine_events.ResponseEnded)
    return words


def shown(words):
    """The items that clients see when an engine delivers `words`."""
    numbers = itertools.count(1)
    response = machine.OutputMachine(lambda prefix: f"{prefix}_{next(numbers)}")
    for word in words:
        response.apply(word)
    assert response.is_over
    return [_shown(item) for item in response.items]


def _shown(item):
    if item.hosted_item is not None:
        return ("hosted", item.hosted_item)
    if item.call is not None:
        return ("call", item.call.call_id, item.call.name, item.call.namespace, item.arguments)
    kind = "reasoning" if item.is_reasoning else "message"
    return (
        kind,
        *((part.kind.value, part.text) for part in [*item.parts, *item.summaries]),
        *([item.encrypted_content] if item.encrypted_content else []),
    )


OPENING = [event("created", response={"id": "resp_theirs"}), event("in_progress", response={"id": "resp_theirs"})]
THOUGHT, SAID, CALLED = reasoning("Let me see."), message("Hello, you."), call("f", '{"x": 1}')
WHOLE = [
    *OPENING,
    *full_reasoning("Let me see.", 0),
    *full_message("Hello, you.", index=1),
    *full_call("f", '{"x": 1}', 2),
    over(output=[THOUGHT, SAID, CALLED]),
]
SEEN = [("reasoning", ("thinking", "Let me see.")), ("message", ("text", "Hello, you.")), ("call", "call_a", "f", None, '{"x": 1}')]
