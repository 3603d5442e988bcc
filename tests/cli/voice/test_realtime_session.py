"""A Realtime session of the client: how it is opened, and how it breaks."""

import http.server
import threading

import pytest

from antiphon.cli.common.client import ApiClient, ServerUnreachable
from antiphon.cli.voice.realtime_session import RealtimeSessionOptions, connect_realtime, refusal_error
from antiphon.config import load as config
from antiphon.errors import UpstreamError
from antiphon.server.processes.run import background_server
from antiphon.wire.realtime.client_events import InputAudioBufferClear
from antiphon.wire.realtime.server_events import RealtimeError
from support.cli.saying import websocket_server

pytestmark = pytest.mark.anyio

PARROT = RealtimeSessionOptions(model="parrot")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def base_url(tmp_path):
    settings = {"models": [{"name": "parrot", "engine": "scripted"}], "speech": {"enabled": False}, "logging": {"level": "warning"}}
    with background_server(
        config.load(settings, None, {"HOME": str(tmp_path)}, tmp_path, system_file=tmp_path / "none.toml").config
    ) as url:
        yield url


@pytest.mark.parametrize("dialect", ["ga", "beta"])
async def test_a_session_counts_events_sent_and_received(base_url, dialect):
    async with connect_realtime(ApiClient(base_url), RealtimeSessionOptions(model="parrot", dialect=dialect)) as session:
        await session.send(InputAudioBufferClear())
        timed_event = await session.receive(20)
    assert timed_event is not None and timed_event.event.type == "input_audio_buffer.cleared"
    assert (session.event_counts.sent["input_audio_buffer.clear"], session.event_counts.received["session.updated"]) == (1, 1)


async def test_nothing_to_hear_in_time_is_none(base_url):
    async with connect_realtime(ApiClient(base_url), PARROT) as session:
        assert await session.receive(0) is None


async def test_a_session_that_is_refused_is_told_in_the_words_of_the_server(base_url):
    with pytest.raises(UpstreamError, match="`singing` does not exist"):
        async with connect_realtime(ApiClient(base_url), RealtimeSessionOptions(model="singing")):
            pass


async def test_a_setting_that_is_refused_is_told_in_the_words_of_the_server(tmp_path):
    models = [{"name": "parrot", "engine": "scripted", "abilities": {"voices": ["soft"]}}]
    settings = {"models": models, "speech": {"enabled": False}, "logging": {"level": "warning"}}
    with background_server(
        config.load(settings, None, {"HOME": str(tmp_path)}, tmp_path, system_file=tmp_path / "none.toml").config
    ) as url:
        with pytest.raises(UpstreamError, match=r"Supported values are: 'soft'\."):
            async with connect_realtime(ApiClient(url), RealtimeSessionOptions(model="parrot", voice="loud")):
                pass


async def test_nobody_at_the_address_is_unreachable():
    with pytest.raises(ServerUnreachable, match=r"^No answer from http://127\.0\.0\.1:1: Connection refused\. Does"):
        async with connect_realtime(ApiClient("http://127.0.0.1:1"), PARROT):
            pass


async def test_a_server_without_the_api_is_told_by_its_status():
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as plain:
        thread = threading.Thread(target=plain.serve_forever, args=(0.01,))
        thread.start()
        try:
            with pytest.raises(UpstreamError, match="answered 501"):
                async with connect_realtime(ApiClient(f"http://127.0.0.1:{plain.server_port}"), PARROT):
                    pass
        finally:
            plain.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([], r"has ended the conversation \(4000: Enough\.\)"),
        (["[]"], "sent something that is no event"),
        (['{"type": "error", "event_id": "e", "error": {"type": "x", "code": "y", "message": "Not so."}}'], r"^Not so\.$"),
    ],
)
async def test_a_server_that_says_something_else_is_an_error(answers, said):
    async with websocket_server("/v1/realtime", answers) as url:
        with pytest.raises(UpstreamError, match=said):
            async with connect_realtime(ApiClient(url), PARROT):
                pass


def test_a_server_without_ears_is_told_of_with_what_to_do():
    deaf = RealtimeError(type="invalid_request_error", code="unsupported_content_type", message="No.", param="audio")
    assert "antiphon models pull --speech" in refusal_error(deaf).message
