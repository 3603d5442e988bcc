"""A WebRTC call: its connection, its session, and their lifetimes."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from starlette.datastructures import QueryParams
from starlette.types import Scope

from antiphon.errors import shutting_down
from antiphon.protocols.realtime.settings import has_audio_input
from antiphon.runtime.core.calls import Call
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.sessions import LiveSession
from antiphon.runtime.recording.recorder import RecordingTap
from antiphon.runtime.server_tools import session_tools
from antiphon.runtime.service import Service
from antiphon.server.http.auth import conversation_settings, request_caller, token_counter, track_response
from antiphon.server.live.client import session_failed
from antiphon.server.live.recording import observe_with, realtime_recording_taps
from antiphon.server.live.session_log import log_realtime_session, realtime_taps
from antiphon.server.realtime.negotiation import build_session
from antiphon.server.transport import logs
from antiphon.server.webrtc.client import CallClient
from antiphon.server.webrtc.network import build_network
from antiphon.server.webrtc.peer import CallPeer
from antiphon.server.webrtc.playback import PlaybackQueue
from antiphon.server.webrtc.request import CallRequest
from antiphon.wire.realtime.dialects import DIALECTS


async def run_call(service: Service, scope: Scope, call_id: str, request: CallRequest, answer: "asyncio.Future[str]") -> None:
    """
    Run a call from its offer to its end.

    Args:
        scope: of the request that started it; the call outlives the request.
        answer: gets the SDP answer, or the error.
    """
    service.metrics.active += 1  # the server waits for it when it stops, as for any session
    try:
        async with track_response(scope, lambda: 0):  # tokens are counted as each response ends
            await _run(service, scope, call_id, request, answer)
    except Exception as error:  # where a session ends
        if answer.done():
            logs.get().exception("defect")
        else:
            answer.set_exception(error)
    finally:
        service.metrics.active -= 1
        if not answer.done():
            answer.set_exception(shutting_down())


async def _run(service: Service, scope: Scope, call_id: str, request: CallRequest, answer: "asyncio.Future[str]") -> None:
    session_config, caller, playback = request.session_config, request_caller(scope), PlaybackQueue()
    recordings = realtime_recording_taps(service, scope, session_config)
    counts, tap = realtime_taps(service, request.model, caller, recordings)
    client = CallClient(DIALECTS[session_config.dialect], tap, playback, accepts_audio=has_audio_input(session_config.capabilities))
    call = Call(call_id, caller.tenant, client, tap)
    with log_realtime_session(service, caller, request.model, session_config, client, counts, recordings) as live:
        network = await build_network(service.config)
        async with asyncio.TaskGroup() as tasks:
            peer = CallPeer(network, playback, client)
            try:
                sdp = await peer.answer(request.offer, tasks)
                await _drive(service, scope, call, client, request, recordings, live, lambda: answer.set_result(sdp))
                await peer.drain(connects=client.has_unsent_error)
            finally:
                await peer.close()


async def _drive(
    service: Service,
    scope: Scope,
    call: Call,
    client: CallClient,
    request: CallRequest,
    recordings: Sequence[RecordingTap],
    live: LiveSession,
    on_started: Callable[[], None],
) -> None:
    settings = conversation_settings(scope, request.model.name, "realtime")
    tools = session_tools(service.toolbox, settings.tenant, request.model.name)
    driver = Driver(
        build_session(QueryParams(scope["query_string"]), request.model, request.session_config),
        call,
        service.store,
        metrics=service.metrics,
        count_tokens=token_counter(scope),
        observe=observe_with(recordings),
        tools=tools,
    )
    call.driver = driver
    live.stop = driver.shut_down
    engine = service.rewriter.around(request.model.live_engine, (request.model.name,), settings.key_id)

    async def begin() -> None:
        client.begin(driver)
        on_started()

    tracking = service.live_sessions.track(driver, request_caller(scope).key)
    with contextlib.closing(tools), tracking, service.calls.track(call):
        try:
            await driver.run(engine, settings, request.session_config, begin)
        except Exception:  # where a session ends
            call.close(session_failed())
            raise
