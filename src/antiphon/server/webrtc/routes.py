"""
Calls over WebRTC: `POST /v1/realtime/calls`, and what can be done to a call by its id.

A call is a Realtime session whose sound comes and goes as sound. It outlives the request that began it: the answer to that is sent once the
engine is there and the call's sockets are open, so that what fails until then is a plain HTTP error.
"""

import asyncio
import importlib
import importlib.util
from email import message_from_bytes
from email.policy import HTTP
from typing import NamedTuple

from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.errors import ClientMistake, OurFault, missing_parameter, shown
from antiphon.protocols.realtime.settings import Opening, initial
from antiphon.runtime.core.ids import mint
from antiphon.runtime.registry import Model
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, caller_of
from antiphon.server.http.body import whole_body
from antiphon.server.realtime.negotiation import asked, dialect_of, opening_for
from antiphon.server.realtime.routes import PRESET, RealtimeRoute
from antiphon.wire.realtime.session import AnySession, decode_session

PATH = "/v1/realtime/calls"

SDP = "application/sdp"

OFFER_LIMIT_BYTES = 512 << 10
"""The longest body: an offer, and the session that it is to begin with."""

SIP_ONLY = ("accept", "reject", "refer")

MISSING = (
    "This server can't take calls: aiortc is not installed. Run `pip install 'antiphon[webrtc]'`, or talk to the WebSocket at /v1/realtime."
)


def routes(service: Service) -> list[Route]:
    """Everything under `/v1/realtime/calls`."""

    async def create(request: Request) -> Response:
        service.live.admit()
        if importlib.util.find_spec("aiortc") is None:
            raise OurFault(MISSING, status=501, code="webrtc_not_available")
        return await _answered(service, request)

    async def hang_up(request: Request) -> Response:
        call = service.calls.find(request.path_params["id"], caller_of(request.scope).tenant)
        if call.driver is not None:
            call.driver.hang_up()
        return Response("", media_type="text/plain")

    async def of_sip(request: Request) -> Response:
        service.calls.find(request.path_params["id"], caller_of(request.scope).tenant)
        action = request.url.path.rpartition("/")[2]
        raise ClientMistake(f"Only calls over SIP can be asked to {action}; this one came over WebRTC.", code="call_not_sip")

    acting = {"hangup": hang_up, **dict.fromkeys(SIP_ONLY, of_sip)}
    return [
        RealtimeRoute(PATH, create, service=service, access="realtime", methods=["POST"]),
        *(
            GuardedRoute(f"{PATH}/{{id}}/{action}", act, service=service, access="realtime", methods=["POST"])
            for action, act in acting.items()
        ),
    ]


async def _answered(service: Service, request: Request) -> Response:
    """Begin the call that is asked for; the answer to its offer."""
    wanted = await _wanted(service, request)
    # WebRTC's library takes a third of a second to load, in which nobody else would be served.
    await asyncio.to_thread(importlib.import_module, "antiphon.server.webrtc.call")
    from antiphon.server.webrtc.call import hold  # noqa: PLC0415 - as above, and it is an extra

    call_id = mint("rtc")
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.calls.begin(hold(service, request.scope, call_id, wanted, answer), call_id)
    return Response(await answer, 201, {"location": f"{PATH}/{call_id}"}, media_type=SDP)


# What is asked for


class Wanted(NamedTuple):
    """What a call is to be."""

    offer: str
    model: Model
    opening: Opening


async def _wanted(service: Service, request: Request) -> Wanted:
    """
    What the call is to be.

    Raises:
        ClientMistake: that can't be had.
    """
    query, headers = QueryParams(request.scope["query_string"]), Headers(scope=request.scope)
    offer, session = _parts(headers.get("content-type", SDP), await whole_body(request, OFFER_LIMIT_BYTES))
    if PRESET in request.scope:
        if session is not None:
            raise ClientMistake("The client secret says already what the session is.", code="invalid_value", param="session")
        session = decode_session(request.scope[PRESET])
    model, is_transcription = asked(query, session, service)
    opening = opening_for(
        service,
        model,
        caller_of(request.scope),
        session=session,
        is_transcription=is_transcription,
        dialect=dialect_of(query, headers, service.config.realtime.dialect, "ga"),
        has_output_buffer=True,
    )
    initial(opening, mint("sess"), 0)  # a caller who is answered is not told any more that there can't be such a session
    return Wanted(offer, model, opening)


def _parts(content_type: str, body: bytes) -> tuple[str, AnySession | None]:
    """The offer, and the session that stands beside it in a form."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == SDP:
        return _text(body), None
    if kind != "multipart/form-data":
        raise ClientMistake(
            f"Unsupported content type: '{shown(content_type)}'. This API method only accepts '{SDP}', with an SDP offer, and "
            "'multipart/form-data', with the fields 'sdp' and 'session'.",
            code="unsupported_content_type",
        )
    fields = _fields(content_type, body)
    if "sdp" not in fields:
        raise missing_parameter("sdp")
    return _text(fields["sdp"]), decode_session(fields["session"]) if "session" in fields else None


def _fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """The fields of a form by their names."""
    head = f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    form = message_from_bytes(head + body, policy=HTTP)
    parts = {part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in form.iter_parts()}
    return {str(name): content for name, content in parts.items() if isinstance(content, bytes)}


def _text(offer: bytes) -> str:
    try:
        return offer.decode()
    except UnicodeDecodeError:
        raise ClientMistake("Invalid SDP offer. Expected text in UTF-8.", code="invalid_offer") from None
