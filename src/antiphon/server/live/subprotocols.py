"""WebSocket subprotocols that clients offer."""

from starlette.datastructures import Headers

from antiphon.server.http.auth import API_KEY_SUBPROTOCOL_PREFIX

BETA_HEADER, BETA_SUBPROTOCOL = "realtime=v1", "openai-beta.realtime-v1"
SUBPROTOCOL = "realtime"


def asks_for_beta(headers: Headers) -> bool:
    """Whether the client asks for the beta dialect, by header or by subprotocol."""
    # RFC 9110, 5.3: a list may come in one line or in several; the same below.
    features = [feature.strip() for line in headers.getlist("openai-beta") for feature in line.split(",")]
    return BETA_HEADER in features or BETA_SUBPROTOCOL in offered_subprotocols(headers)


def select_subprotocol(headers: Headers) -> str | None:
    """
    The subprotocol to answer with; None where none was offered.

    Browsers close a WebSocket whose server selects none of those offered. One that carries a key is never selected: the
    answer would repeat the key.
    """
    names = offered_subprotocols(headers)
    if SUBPROTOCOL in names:
        return SUBPROTOCOL
    return next((name for name in names if not name.startswith(API_KEY_SUBPROTOCOL_PREFIX)), None)


def offered_subprotocols(headers: Headers) -> list[str]:
    """All subprotocols that the client offers, the preferred one first (RFC 6455, 11.3.4)."""
    lines = headers.getlist("sec-websocket-protocol")
    return [name.strip() for line in lines for name in line.split(",") if name.strip()]
