"""The events and commands that a live session has decided on and not yet handed out."""

from typing import Any

from antiphon.engine_api import commands
from antiphon.protocols.session import Effect, Mint, Send, Tell


class Outbox:
    """
    What a session does about the event that it is handling.

    Attributes:
        effects: in order.
    """

    def __init__(self, mint: Mint) -> None:
        self.effects: list[Effect] = []
        self._mint = mint

    def send(self, kind: Any, **fields: Any) -> None:
        """Send the client an event of that kind."""
        self.effects.append(Send(kind(event_id=self._mint("event"), **fields)))

    def tell(self, word: commands.ToEngine) -> None:
        """Tell the engine a word."""
        self.effects.append(Tell(word))

    def take(self) -> list[Effect]:
        """All that is to be done; from here on it is empty."""
        effects, self.effects = self.effects, []
        return effects
