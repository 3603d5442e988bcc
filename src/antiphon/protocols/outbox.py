"""The effects that a live session has decided on and not yet returned."""

from collections.abc import Callable, Mapping
from typing import Generic

from antiphon.engine_api import commands
from antiphon.protocols.session import Effect, InputTranscript, Observe, Send, SendToEngine, ServerEventT


class Outbox(Generic[ServerEventT]):
    """
    What a session does about the event that it is handling.

    Attributes:
        effects: in order.
    """

    def __init__(self) -> None:
        self.effects: list[Effect[ServerEventT]] = []

    def stamp(self) -> Mapping[str, object]:
        """The fields that every event to the client carries, such as its id; called once for each."""
        return {}

    def send(self, kind: Callable[..., ServerEventT], /, **fields: object) -> None:
        """Send the client an event: `kind` is its class."""
        self.effects.append(Send(kind(**fields, **self.stamp())))

    def send_to_engine(self, command: commands.EngineCommand) -> None:
        """Send the engine a command."""
        self.effects.append(SendToEngine(command))

    def observe(self, transcript: InputTranscript) -> None:
        """Show a recorder what the client is not told."""
        self.effects.append(Observe(transcript))

    def drain(self) -> list[Effect[ServerEventT]]:
        """All effects so far; the outbox is empty afterwards."""
        effects, self.effects = self.effects, []
        return effects
