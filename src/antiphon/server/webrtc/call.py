"""A whole call: its connection, its session, and the order in which they begin and end."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import Scope

from antiphon.errors import OurFault
from antiphon.protocols.realtime.session import Realtime
from antiphon.protocols.realtime.settings import Opening, can_hear
from antiphon.runtime.core.calls import Call
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.ids import mint
from antiphon.runtime.registry import Model
from antiphon.runtime.service import Service
from antiphon.server.http.auth import answering, caller_of, settings_of, spending
from antiphon.server.live.recording import recordings_of
from antiphon.server.live.session_log import noted, taps_of
from antiphon.server.transport import logs
from antiphon.server.webrtc.client import CallClient
from antiphon.server.webrtc.network import network_of
from antiphon.server.webrtc.peer import Peer
from antiphon.server.webrtc.playback import Playing
from antiphon.wire.realtime.dialects import DIALECTS


class Wanted(Protocol):
    """What a call is to be."""

    @property
    def offer(self) -> str:
        """The client's, in SDP."""

    @property
    def model(self) -> Model:
        """The one that answers."""

    @property
    def opening(self) -> Opening:
        """What the session begins with."""


async def hold(service: Service, scope: Scope, call_id: str, wanted: Wanted, answer: "asyncio.Future[str]") -> None:
    """
    A call, from its offer to its end.

    Args:
        scope: of the request that began it, and that the call outlives.
        answer: to the offer; where there is none, why.
    """
    service.metrics.active += 1  # as with any session, the server waits for it when it is to stop
    try:
        async with answering(scope, lambda: 0):  # the tokens of its answers are counted as each of them ends
            await _talk(service, scope, call_id, wanted, answer)
    except Exception as error:  # where a session ends
        if answer.done():
            logs.get().exception("defect")
        else:
            answer.set_exception(error)
    finally:
        service.metrics.active -= 1
        if not answer.done():
            answer.set_exception(OurFault("The server is shutting down. Please try again.", status=503, code="server_shutting_down"))


async def _talk(service: Service, scope: Scope, call_id: str, wanted: Wanted, answer: "asyncio.Future[str]") -> None:
    opening, caller, playing = wanted.opening, caller_of(scope), Playing()
    recordings = recordings_of(service, scope, opening)
    counted, tap = taps_of(service, wanted.model, recordings)
    client = CallClient(DIALECTS[opening.dialect], tap, playing, hears=can_hear(opening.abilities))
    call = Call(call_id, caller.tenant, client, tap)
    with noted(service, wanted.model, opening, client, counted, recordings):
        network = await network_of(service.config)
        async with asyncio.TaskGroup() as tasks:
            peer = Peer(network, playing, client)
            try:
                told = await peer.answer(wanted.offer, tasks)
                await _drive(service, scope, call, client, wanted, lambda: answer.set_result(told))
                await peer.say_goodbye()
            finally:
                await peer.close()


async def _drive(service: Service, scope: Scope, call: Call, client: CallClient, wanted: Wanted, begun: Callable[[], None]) -> None:
    """The call's session."""
    driver = Driver(Realtime(wanted.opening, mint), call, service.store, metrics=service.metrics, spend=spending(scope))
    call.driver = driver

    async def meanwhile() -> None:
        client.begin(driver)
        begun()

    with service.live.during(driver, caller_of(scope).key), service.calls.during(call):
        try:
            await driver.run(wanted.model.live, settings_of(scope, wanted.model.name, "realtime"), wanted.opening, meanwhile)
        except Exception:  # where a session ends
            call.close(OurFault("The server had an error, and the session can't go on."))
            raise
