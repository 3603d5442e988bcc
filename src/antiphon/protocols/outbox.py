"""The events and commands that a live session has decided on and not yet handed out."""

from typing import Any

from antiphon.engine_api import commands
from antiphon.protocols.session import Effect, NewId, Send, SendToEngine


class RealtimeOutbox:
    """
    What a session does about the event that it is handling.

    Attributes:
        effects: in order.
    """

    def __init__(self, new_id: NewId) -> None:
        self.effects: list[Effect] = []
        self._new_id = new_id

    def send(self, kind: Any, **fields: Any) -> None:
        """Send the client an event of that kind."""
        self.effects.append(Send(kind(event_id=self._new_id("event"), **fields)))

    def send_to_engine(self, command: commands.EngineCommand) -> None:
        """Tell the engine a word."""
        self.effects.append(SendToEngine(command))

    def drain(self) -> list[Effect]:
        """All that is to be done; from here on it is empty."""
        effects, self.effects = self.effects, []
        return effects
