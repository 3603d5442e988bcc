"""The dialects of the Realtime API: each reads and writes the same events."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime import beta_events, client_events, server_events
from antiphon.wire.realtime.client_events import ClientEvent
from antiphon.wire.realtime.server_events import ServerEvent

DialectName = Literal["ga", "beta"]


class Dialect(NamedTuple):
    """
    How events stand in frames.

    Attributes:
        name: of the dialect.
        decode_client: the event in a client's frame; raises `ClientError`.
        encode_client: JSON of a client's event.
        encode_server: JSON of a server's event; None where the dialect has no such event.
        decode_server: the event in a server's frame, `Unknown` where it is not as this version knows it; raises `ClientError`.
    """

    name: DialectName
    decode_client: Callable[[bytes], ClientEvent]
    encode_client: Callable[[ClientEvent], bytes]
    encode_server: Callable[[ServerEvent], bytes | None]
    decode_server: Callable[[bytes], ServerEvent | Unknown]


DIALECTS: dict[DialectName, Dialect] = {
    "ga": Dialect("ga", client_events.decode_client, client_events.encode_client, server_events.encode_server, server_events.decode_server),
    "beta": Dialect("beta", beta_events.decode_client, beta_events.encode_client, beta_events.encode_server, beta_events.decode_server),
}
