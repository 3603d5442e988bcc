"""Checks of every streamed message, and the message that a client makes of it."""

import json


def read_stream(events):
    """
    The message that a client assembles from a stream, whose rules are checked on the way.

    Returns:
        The message, with its blocks, stop reason and usage; or None and the error where the stream ended with one.
    """
    assert events[0]["type"] == "message_start"
    message = dict(events[0]["message"])
    assert message["content"] == [] and message["stop_reason"] is None and message["usage"]["output_tokens"] == 0
    blocks, partial, is_open = [], "", False
    for number, event in enumerate(events[1:], 1):
        is_last = number == len(events) - 1
        match event["type"]:
            case "ping":
                pass
            case "content_block_start":
                assert not is_open and event["index"] == len(blocks), "blocks are open one at a time, and numbered without a gap"
                blocks.append(dict(event["content_block"]))
                is_open, partial = True, ""
            case "content_block_delta":
                assert is_open and event["index"] == len(blocks) - 1
                partial = grown(blocks[-1], event["delta"], partial)
            case "content_block_stop":
                assert is_open and event["index"] == len(blocks) - 1
                is_open = False
                check_complete(blocks[-1], partial)
            case "message_delta":
                assert not is_open and events[number + 1]["type"] == "message_stop"
                message |= event["delta"]
                assert event["usage"].keys() >= message["usage"].keys()
                message["usage"] = event["usage"]
            case "message_stop":
                assert is_last and message["stop_reason"] is not None
            case "error":
                assert is_last and not is_open
                return None, event["error"]
            case other:
                raise AssertionError(f"no event of a message: {other}")
    assert events[-1]["type"] == "message_stop"
    return message | {"content": blocks}, None


FIELDS = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking"), "signature_delta": ("thinking", "signature")}


def grown(block, delta, partial):
    """Add a delta to its block, whose type it must fit."""
    if delta["type"] == "input_json_delta":
        assert block["type"] == "tool_use" and delta["partial_json"]
        return partial + delta["partial_json"]
    kind, field = FIELDS[delta["type"]]
    assert block["type"] == kind and delta[field]
    assert field != "signature" or not block["signature"], "the signature comes once"
    assert kind != "thinking" or field == "signature" or not block["signature"], "and at the end"
    block[field] += delta[field]
    return partial


def check_complete(block, partial):
    """A block that ends."""
    if block["type"] == "thinking":
        assert block["signature"], "a block without a signature would be lost when it comes back"
    if block["type"] == "tool_use":
        assert block["input"] == {}
        try:
            block["input"] = json.loads(partial) if partial else {}
        except ValueError:  # it was cut off, or the model can't write JSON
            block["input"] = {"_raw": partial}
