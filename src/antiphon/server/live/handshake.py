"""From a request to a WebSocket."""

from starlette.datastructures import Headers
from starlette.types import Scope, Send

from antiphon.server.live.subprotocols import select_subprotocol
from antiphon.server.transport import connection
from antiphon.server.transport.websocket import ServerWebSocket, WebSocketListener, upgrade_required


def check_handshake(scope: Scope) -> None:
    """
    Refuse a request that is not a WebSocket handshake.

    Raises:
        ClientError: it is not one.
    """
    if not connection.is_handshake(scope):
        raise upgrade_required("This address is for WebSockets: the request must ask for an upgrade to one.")


async def upgrade(scope: Scope, send: Send, listener: WebSocketListener | None) -> ServerWebSocket:
    """
    Accept a handshake, with one of the subprotocols that the client offers.

    Raises:
        ClientError: the handshake is invalid; nothing was sent.
    """
    return await connection.from_scope(scope).upgrade(send, listener, subprotocol=select_subprotocol(Headers(scope=scope)))
