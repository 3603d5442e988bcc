"""Recorded exchanges with upstream servers, from the folder `recorded`, and what the engine makes of one, however its bytes are split."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import NamedTuple

import msgspec

from antiphon.engine_api import commands, events as engine_events
from antiphon.engines.chat.request import flat_name
from antiphon.engines.chat.response import ChatResponseReader
from antiphon.engines.upstream.http_connection import HttpConnection
from antiphon.engines.upstream.http_exchange import HttpExchange, ResponseLimits
from antiphon.errors import ApiError

FOLDER = Path(__file__).parent / "recorded"


class Recorded(NamedTuple):
    """One exchange; `body` is split as the server split it, `means` is the expected result."""

    name: str
    quirks: str
    ask: commands.Respond
    request: dict
    status: int
    headers: dict
    body: list
    means: dict

    def wire(self, body=None):
        """The bytes of the response, with another body if given."""
        pieces = self.body if body is None else body
        return answer(self.status, self.headers, pieces)


def answer(status, headers, pieces):
    """The bytes of a response; with chunked encoding each piece is a chunk."""
    encoded = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
    if "transfer-encoding" in headers:
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in encoded if piece) + b"0\r\n\r\n"
    else:
        body = b"".join(encoded)
        headers = headers | {"content-length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + body


def _read(path):
    found = json.loads(path.read_text())
    ask = msgspec.convert({"word": "Respond", "id": "resp_1", **found["ask"]}, commands.Respond)
    told = found["answer"]
    return Recorded(path.stem, found["quirks"], ask, found["request"], told["status"], told["headers"], told["body"], found["means"])


RECORDED = [_read(path) for path in sorted(FOLDER.glob("*.json"))]


def understood(words):
    """The meaning of events, in the format of the recordings."""
    means = {}
    for word in words:
        _understand(word, means)
    if "calls" in means:
        means["calls"] = list(means["calls"].values())
    return means


def _understand(word, means):
    match word:
        case engine_events.TextDelta() | engine_events.ReasoningDelta() | engine_events.RefusalDelta():
            kind = type(word).__name__.removesuffix("Delta").lower()
            means[kind] = means.get(kind, "") + word.text
            if isinstance(word, engine_events.TextDelta) and word.logprobs:
                means.setdefault("logprobs", []).extend(map(_likely, word.logprobs))
        case engine_events.AnnotationAdded(_, annotation):
            means.setdefault("annotations", []).append(annotation)
        case engine_events.ToolCallStarted(_, call_id, name):
            assert call_id not in means.setdefault("calls", {}), "a call begins once"
            means["calls"][call_id] = [call_id, name, ""]
        case engine_events.ToolArgumentsDelta(_, call_id, text):
            means["calls"][call_id][2] += text
        case engine_events.Usage():
            means["used"] = [word.input_tokens, word.output_tokens, word.cached_tokens, word.reasoning_tokens]
        case engine_events.ResponseEnded(_, reason):
            means["ended"] = reason
        case engine_events.ResponseFailed():
            means["broke"] = [word.status, word.code, word.param]


def _likely(token):
    chosen = token.token
    return [chosen.token, chosen.logprob, list(chosen.bytes), [other.token for other in token.alternatives]]


class Wire(asyncio.Transport):
    """A connection whose far end is the test."""

    def __init__(self, protocol):
        super().__init__()
        self.sent = bytearray()
        self._protocol = protocol
        self._is_closing = False

    def write(self, data):
        self.sent += data

    def is_closing(self):
        return self._is_closing

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def abort(self):
        self.close()

    def close(self, error=None):
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)


class Reader:
    """A listener for an exchange of the engine, without a conversation."""

    def __init__(self, ask):
        self.words = []
        self._reading = ChatResponseReader(ask.id, {flat_name(tool.name, tool.namespace): tool for tool in ask.tools})

    def on_events(self, events):
        return self._reading.read(events, self.words)

    def on_stream_end(self):
        return self._reading.finish(self.words)

    def open_fast_path(self, read, pieces, account):
        return None


async def _heard(ask, pieces, is_reset):
    listener = Reader(ask)
    connection = HttpConnection(lambda _connection: None, lambda _connection: None)
    wire = Wire(connection)
    connection.connection_made(wire)
    exchange = HttpExchange(connection.loop, listener, 60, 60, ResponseLimits(), lambda: None)
    exchange.start(connection, b"")
    for piece in pieces:
        if not wire.is_closing():
            connection.data_received(piece)
    wire.close(ConnectionResetError() if is_reset else None)
    failure = await asyncio.wait_for(exchange.outcome, 10)
    exchange.abort()
    if failure is not None:
        assert isinstance(failure.error, ApiError)
        listener.words.append(_broke(ask.id, failure.error))
    return listener.words


def _broke(id, fault):
    return engine_events.ResponseFailed(
        id=id, message=fault.message, status=fault.status, code=fault.code, param=fault.param, retry_after_s=fault.retry_after_s
    )


def heard(ask, pieces, *, is_reset=False):
    """The events of a response that arrives in these pieces, after which the connection closes."""
    return asyncio.run(_heard(ask, pieces, is_reset))


def cut(data, places):
    """Bytes, split at those of the positions that lie within them."""
    bounds = [0, *sorted({place for place in places if 0 < place < len(data)}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]
