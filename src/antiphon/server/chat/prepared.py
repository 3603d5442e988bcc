"""A chat that is ready to be answered, in whichever way its model is reached."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from antiphon.engine_api.engine import Engine
from antiphon.engine_api.options import ConversationSettings
from antiphon.protocols.session import Session
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.registry import ServedModel
from antiphon.server.chat.outcome import MeasuredChat
from antiphon.tools.toolbox import OpenTools
from antiphon.wire.chat.stream import RoleChunk
from antiphon.wire.codec.stream_encoder import StreamEncoder

NOT_STORED = MappingProxyType({"antiphon-not-stored": "1"})
"""Says that `store` was accepted and nothing stored: an error would fail all requests of programs that always send it."""


class PreparedChat(Struct, frozen=True, kw_only=True):
    """
    A chat that is ready to be answered.

    Attributes:
        session: answers it; its events are those of `encoder`, or end with a whole answer.
        opening: what the session begins with.
        result: the same session, as the metrics and the limits see it.
        encoder: writes the stream; None for an answer that is sent whole.
        opening_events: types of events that come before any output.
        choice_count: how many responses it makes, each of which counts against the limits of a key.
        lease: of the memory that its files take.
        headers: of the answer.
        tools: runs the tools of the server that it has; None where it has none.
        protocol: as usage is counted by: `chat`, `completions` or `embeddings`.
    """

    session: Session[Any, Any]
    opening: object
    result: MeasuredChat
    engine: Engine
    settings: ConversationSettings
    model: ServedModel
    lease: BodyLease
    encoder: StreamEncoder[Any] | None
    opening_events: tuple[type, ...] = (RoleChunk,)
    choice_count: int = 1
    audio_format: str | None = None
    headers: Mapping[str, str] = {}
    protocol: str = "chat"
    tools: OpenTools | None = None

    def release(self) -> None:
        """Give back its memory and its tools, however the answer ended."""
        self.lease.release()
        if self.tools is not None:
            self.tools.close()
