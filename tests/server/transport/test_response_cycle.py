"""The head of a response is what uvicorn would write, byte for byte."""

import asyncio

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from antiphon.server.transport.response_cycle import BODY_KEY, ResponseCycle

JSON = (b"content-type", b"application/json")


class Written:
    def __init__(self):
        self.bytes = b""
        self.is_closed = False

    def write(self, out):
        self.bytes += out

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed


class Flow:
    write_paused = False


def sent(kind, status, headers, *, method="POST", keep_alive=True, body=b"body", at_once=False):
    """What is written for a response, in one message or two; whether the connection is closed then; what goes wrong."""
    transport = Written()

    async def send():
        cycle = kind(
            scope={"type": "http", "method": method},
            transport=transport,
            flow=Flow(),
            logger=None,
            access_logger=None,
            access_log=False,
            default_headers=[(b"date", b"now")],
            message_event=asyncio.Event(),
            expect_100_continue=True,
            keep_alive=keep_alive,
            on_response=lambda: None,
        )
        try:
            start = {"type": "http.response.start", "status": status, "headers": headers}
            if at_once:
                await cycle.send(start | {BODY_KEY: body})
            else:
                await cycle.send(start)
                await cycle.send({"type": "http.response.body", "body": body})
        except RuntimeError as error:
            return str(error), cycle.response_complete
        return "", cycle.response_started, cycle.waiting_for_100_continue

    return asyncio.run(send()), transport.bytes, transport.is_closed


@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("method", ["POST", "HEAD"])
@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, []),
        (200, [JSON, (b"content-length", b"4")]),
        (200, [JSON, (b"Content-Length", b"3")]),
        (200, [JSON, (b"content-length", b"5")]),
        (200, [(b"transfer-encoding", b"Chunked")]),
        (200, [(b"content-length", b"4"), (b"transfer-encoding", b"chunked")]),
        (200, [(b"X-Request-Id", b"req_1"), (b"x-request-id", b"req_2"), (b"x-empty", b"")]),
        (426, [(b"connection", b"upgrade"), (b"content-length", b"4")]),
        (503, [(b"connection", b"Close"), (b"content-length", b"4")]),
        (503, [(b"Connection", b"upgrade, close"), (b"content-length", b"4")]),
        (599, [(b"content-length", b"4")]),
        (204, []),
        (304, [JSON]),
        (200, [JSON, (b"x-note", b"a\r\nset-cookie: b")]),
        (200, [(b"x-note", b"tab\there \xff")]),
        (200, [(b"x-note", b"a"), (b"x-nul", b"\x00")]),
        (200, [(b"x note", b"a")]),
        (200, [(b"", b"a")]),
    ],
    ids=repr,
)
def test_it_is_what_uvicorn_writes(status, headers, method, keep_alive):
    body = b"" if status in (204, 304) else b"body"
    kinds = ((ResponseCycle, False), (ResponseCycle, True), (RequestResponseCycle, False))
    ours, ours_at_once, uvicorns = (
        sent(kind, status, headers, method=method, keep_alive=keep_alive, body=body, at_once=at_once) for kind, at_once in kinds
    )
    assert ours == ours_at_once == uvicorns


def test_a_name_that_is_no_header_is_refused_each_time():
    for _ in range(2):
        assert sent(ResponseCycle, 200, [(b"x:y", b"a")])[0] == ("Invalid HTTP header name.", False)
