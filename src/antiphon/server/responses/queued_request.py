"""The request of a queued response as it is stored, so that another server can make the response."""

import msgspec
from msgspec import Struct

from antiphon.engine_api.routing import RouteDecision
from antiphon.errors import ServerError
from antiphon.offload import offload
from antiphon.protocols.responses.credentials import request_credentials, request_with_credentials, request_without_credentials
from antiphon.runtime.service import Service
from antiphon.wire.codec.fields import is_set
from antiphon.wire.responses.request import CreateRequest, decode_request, encode_request


class _QueuedRequest(Struct, frozen=True, array_like=True):
    """
    What is stored for a request with a route or with credentials; others are stored as they are.

    Attributes:
        route: by which its model was chosen; None where it named the model.
        secrets: of its MCP servers, in their order, as encrypted JSON.
    """

    request: msgspec.Raw
    route: RouteDecision | None = None
    secrets: str | None = None


async def encode_queued(service: Service, request: CreateRequest, body: bytes, route: RouteDecision | None, tenant: str) -> bytes:
    """
    The request as another server needs it to begin again: with its prompt filled in, as the prompt may be edited
    meanwhile, and with the route that it took. Credentials of its MCP servers are encrypted.

    Args:
        body: of the request, as it came.

    Raises:
        ServerError: the credentials are too long to be encrypted.
    """
    secrets = request_credentials(request)
    # Otherwise the body is stored as it came: encoding a large one again takes time, and changes nothing.
    if secrets or is_set(request.prompt):
        body = await offload(len(body), encode_request, request_without_credentials(request))
    if route is None and not secrets:
        return body
    ciphertext: str | None = None
    if secrets:
        cipher = await service.content_cipher()
        ciphertext = cipher.encrypt(msgspec.json.encode(secrets), tenant, "background")
        if ciphertext is None:
            raise ServerError("The credentials of the request's MCP servers are too long.", status=413, code="request_too_large")
    return msgspec.json.encode(_QueuedRequest(msgspec.Raw(body), route, ciphertext))


async def decode_queued(service: Service, body: bytes, tenant: str) -> tuple[CreateRequest, RouteDecision | None]:
    """
    The request, and the route that it took.

    Raises:
        ApiError: it can't be read any more.
    """
    if not body.startswith(b"["):  # no request is an array
        return await offload(len(body), decode_request, body), None
    stored_request = await offload(len(body), lambda: msgspec.json.decode(body, type=_QueuedRequest))
    request = await offload(len(body), decode_request, bytes(stored_request.request))
    if stored_request.secrets is not None:
        cipher = await service.content_cipher()
        secrets = msgspec.json.decode(cipher.decrypt(stored_request.secrets, tenant, "background", "tools"))
        request = request_with_credentials(request, secrets)
    return request, stored_request.route
