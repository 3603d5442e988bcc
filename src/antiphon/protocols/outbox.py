"""The effects that a live session has decided on and not yet returned."""

from collections.abc import Callable
from typing import Any

from antiphon.engine_api import commands
from antiphon.protocols.session import Effect, Send, SendToEngine
from antiphon.wire.codec.types import Wire


class Outbox:
    """
    What a session does about the event that it is handling.

    Args:
        stamp: the fields that every event to the client carries, such as its id; called once for each.

    Attributes:
        effects: in order.
    """

    def __init__(self, stamp: Callable[[], dict[str, Any]]) -> None:
        self.effects: list[Effect] = []
        self._stamp = stamp

    def send(self, kind: Callable[..., Wire], /, **fields: Any) -> None:
        """Send the client an event: `kind` is its class."""
        self.effects.append(Send(kind(**fields, **self._stamp())))

    def send_to_engine(self, command: commands.EngineCommand) -> None:
        """Send the engine a command."""
        self.effects.append(SendToEngine(command))

    def drain(self) -> list[Effect]:
        """All effects so far; the outbox is empty afterwards."""
        effects, self.effects = self.effects, []
        return effects
