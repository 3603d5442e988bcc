"""
Calls over WebRTC: `POST /v1/realtime/calls`, and actions on a call by its id.

A call is a Realtime session with audio tracks. It outlives the request that starts it. That request is answered once
the engine and the call's sockets are open, so that what fails until then is a plain HTTP error.
"""

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Coroutine
from email import message_from_bytes
from email.policy import HTTP
from typing import TypeAlias

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from antiphon.errors import ClientError, ServerError, missing_parameter, shorten
from antiphon.installation import install_hint
from antiphon.protocols.realtime.settings import initial_session
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.body import read_body
from antiphon.server.http.operation import MODEL_NOT_FOUND, Header, Operation
from antiphon.server.realtime.client_secrets import SECRET_ERRORS
from antiphon.server.realtime.negotiation import SESSION_PARAMETERS, build_session_config, negotiate_dialect, select_model
from antiphon.server.realtime.routes import PRESET_SCOPE_KEY, RealtimeRoute
from antiphon.server.webrtc.request import CallRequest
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.realtime.session import AnySession, decode_session

PATH = "/v1/realtime/calls"

RunCall: TypeAlias = Callable[[Service, Scope, str, CallRequest, "asyncio.Future[str]"], Coroutine[None, None, None]]

SDP_TYPE = "application/sdp"

OFFER_LIMIT_BYTES = 512 << 10
"""The largest body: an offer and a session."""

AIORTC_MISSING = f"This server can't take calls: aiortc is not installed. {install_hint('webrtc')} Or use the WebSocket at /v1/realtime."


class CallForm(msgspec.Struct):
    """An offer in SDP, and the session that the call begins with."""

    sdp: str
    session: JsonDict = {}


_CREATE = Operation(
    "createCall",
    "Realtime",
    "Call, over WebRTC",
    request_type=CallForm,
    request_media_types=("multipart/form-data", SDP_TYPE),
    errors=SECRET_ERRORS | MODEL_NOT_FOUND | {501: "This server can't take calls; `message` says how to change that."},
    query=SESSION_PARAMETERS,
    description="The response is the answer to the offer; `location` has the call's id. The reference of the Realtime API has the events "
    "that follow, on the data channel `oai-events`.",
    status=201,
    media_types=(SDP_TYPE,),
    headers={"location": Header("The call's address; its last part is its id.", {"type": "string"}, is_required=True)},
)
_NOT_FOUND = {404: "There is no such call."}
_HANG_UP = Operation("hangUpCall", "Realtime", "End a call", errors=_NOT_FOUND, media_types=("text/plain",))


def _sip_operation(id: str, summary: str) -> Operation:
    return Operation(id, "Realtime", summary, errors=_NOT_FOUND | {400: "The call is not a SIP call: it came over WebRTC."})


_SIP_OPERATIONS = {
    "accept": _sip_operation("acceptCall", "Accept a SIP call"),
    "reject": _sip_operation("rejectCall", "Reject a SIP call"),
    "refer": _sip_operation("referCall", "Transfer a SIP call"),
}


def routes(service: Service) -> list[GuardedRoute]:
    """All routes under `/v1/realtime/calls`."""

    async def create(request: Request) -> Response:
        service.live_sessions.check_admission()
        if importlib.util.find_spec("aiortc") is None:
            raise ServerError(AIORTC_MISSING, status=501, code="webrtc_not_available")
        return await _create_call(service, request)

    async def hang_up(request: Request) -> Response:
        call = service.calls.find(request.path_params["id"], request_caller(request.scope).tenant)
        if call.driver is not None:
            call.driver.hang_up()
        return Response("", media_type="text/plain")

    async def sip_action(request: Request) -> Response:
        service.calls.find(request.path_params["id"], request_caller(request.scope).tenant)
        action = request.url.path.rpartition("/")[2]
        raise ClientError(f"Only calls over SIP can be asked to {action}; this one came over WebRTC.", code="call_not_sip")

    return [
        RealtimeRoute(PATH, create, service=service, access="realtime", operation=_CREATE, method="POST"),
        *guarded_routes(
            service,
            [
                ("POST", f"{PATH}/{{id}}/hangup", hang_up, "realtime", _HANG_UP),
                *(("POST", f"{PATH}/{{id}}/{action}", sip_action, "realtime", operation) for action, operation in _SIP_OPERATIONS.items()),
            ],
        ),
    ]


async def _create_call(service: Service, request: Request) -> Response:
    """Start a call, and answer its offer."""
    await service.speech.prepare()
    call_request = await _parse_call_request(service, request)
    # aiortc is an extra and takes a third of a second to load, so it is imported only here, and in a thread.
    run_call: RunCall = (await asyncio.to_thread(importlib.import_module, "antiphon.server.webrtc.call")).run_call
    call_id = new_id("rtc")
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.calls.start(run_call(service, request.scope, call_id, call_request, answer), call_id)
    return Response(await answer, 201, {"location": f"{PATH}/{call_id}"}, media_type=SDP_TYPE)


# The request


async def _parse_call_request(service: Service, request: Request) -> CallRequest:
    """
    The validated request.

    Raises:
        ClientError: it is invalid.
    """
    query, headers = QueryParams(request.scope["query_string"]), Headers(scope=request.scope)
    offer, session = _parse_body(headers.get("content-type", SDP_TYPE), await read_body(request, OFFER_LIMIT_BYTES))
    if PRESET_SCOPE_KEY in request.scope:
        if session is not None:
            raise ClientError("The client secret already defines the session.", code="invalid_value", param="session")
        session = decode_session(request.scope[PRESET_SCOPE_KEY])
    model, is_transcription = select_model(query, session, service, request_caller(request.scope))
    session_config = build_session_config(
        service,
        model,
        request_caller(request.scope),
        session=session,
        is_transcription=is_transcription,
        dialect=negotiate_dialect(query, headers, service.config.realtime.dialect, "ga"),
        has_output_buffer=True,
    )
    initial_session(session_config, new_id("sess"), 0)  # only to validate: after the SDP answer there is no way to report an error
    return CallRequest(offer, model, session_config)


def _parse_body(content_type: str, body: bytes) -> tuple[str, AnySession | None]:
    """The offer, and the session if the body is a form with one."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == SDP_TYPE:
        return _decode_offer(body), None
    if kind != "multipart/form-data":
        raise ClientError(
            f"Unsupported content type: '{shorten(content_type)}'. This API method only accepts '{SDP_TYPE}', with an SDP offer, and "
            "'multipart/form-data', with the fields 'sdp' and 'session'.",
            code="unsupported_content_type",
        )
    fields = _form_fields(content_type, body)
    if "sdp" not in fields:
        raise missing_parameter("sdp")
    return _decode_offer(fields["sdp"]), decode_session(fields["session"]) if "session" in fields else None


def _form_fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """The fields of a form by name; of several with one name, the last."""
    head = f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    try:
        form = message_from_bytes(head + body, policy=HTTP)
        parts = {part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in form.iter_parts()}
    except Exception as error:  # the parser has no common exception for malformed headers, and doesn't name those that it has
        raise ClientError("We could not parse the multipart form of your request.", code="invalid_multipart_form") from error
    return {str(name): content for name, content in parts.items() if isinstance(content, bytes)}


def _decode_offer(offer: bytes) -> str:
    try:
        return offer.decode()
    except UnicodeDecodeError:
        raise ClientError("Invalid SDP offer. Expected text in UTF-8.", code="invalid_offer") from None
