"""The dialects of the Realtime API, GA and beta: both read and write the same events."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime import beta_events, client_events, server_events
from antiphon.wire.realtime.client_events import ClientEvent
from antiphon.wire.realtime.server_events import ServerEvent

DialectName = Literal["ga", "beta"]


class Dialect(NamedTuple):
    """
    How a dialect codes events in frames.

    Attributes:
        decode_client: decodes a client's frame; raises `ClientError`.
        encode_server: returns None if the dialect has no such event.
        decode_server: decodes a server's frame; `Unknown` if it does not fit this version's types; raises
            `ClientError`.
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
