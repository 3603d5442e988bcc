"""A validated request for a call. Apart from `routes` and `call`, because only the latter loads aiortc."""

from typing import NamedTuple

from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.runtime.registry import ServedModel


class CallRequest(NamedTuple):
    """
    What a client asks for.

    Attributes:
        offer: in SDP.
        model: the model that answers.
        session_config: how the session begins.
    """

    offer: str
    model: ServedModel
    session_config: RealtimeSessionConfig
