"""
Full duplex with an engine that listens and takes turns: it seems to hear, see and speak at once.

`docs/reference/full-duplex.md` describes what it does. All that is no full duplex goes to the engine as it is.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence

from msgspec import structs

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Conversation, CountingEngine, Deliver, Engine
from antiphon.engine_api.options import Settings
from antiphon.engines.duplex.conversation import Dialogue
from antiphon.engines.duplex.vision import Blind, Reader, Reading, Seeing, Sight


def can_converse(abilities: Abilities) -> bool:
    """Whether an engine of those abilities, which has no full duplex of its own, can have it by `Duplex`."""
    return abilities.listens and bool(abilities.turn_detection) and not abilities.full_duplex


class Duplex:
    """
    An engine of turns, in full duplex.

    Args:
        within: listens, tells turns, and answers, aloud where it can. Whoever made it starts and stops it.
        reader: reads what is written on pictures, where the engine can't see; None where nobody does.
    """

    def __init__(self, within: Engine, reader: Reader | None = None) -> None:
        self._within = within
        self._reader = reader
        sees = within.abilities.images or reader is not None
        self.abilities = structs.replace(within.abilities, full_duplex=True, sees=sees)

    async def start(self) -> None:
        """Nothing of its own to load."""

    async def stop(self) -> None:
        """Nothing of its own to let go of."""

    async def count(self, ask: commands.Respond) -> int:
        """The tokens that the engine within reads."""
        within: CountingEngine = self._within  # type: ignore[assignment]  # asked only where its abilities say so
        return await within.count(ask)

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation; in full duplex once it is told so."""
        conversation = _Conversation(self.abilities, self._reader, deliver)
        async with self._within.open(settings, conversation.take) as within:
            conversation.within = within
            try:
                yield conversation
            finally:
                conversation.close()


class _Conversation:
    """
    One conversation.

    Attributes:
        within: the engine's side of it.
    """

    within: Conversation

    def __init__(self, abilities: Abilities, reader: Reader | None, deliver: Deliver) -> None:
        self._abilities = abilities
        self._reader = reader
        self._deliver = deliver
        self._dialogue: Dialogue | None = None

    def tell(self, word: commands.ToEngine) -> None:
        dialogue = self._dialogue
        if dialogue is None:
            self._tell_beforehand(word)
            return
        match word:
            case commands.Hear():
                dialogue.hear(word)
            case commands.See():
                dialogue.see(word)
            case commands.Listen():
                dialogue.listen()
            case commands.Respond() | commands.Cancel():
                self.within.tell(word)  # something beside the conversation
            case commands.Converse() | commands.Configure() | commands.Commit() | commands.Forget() | commands.Foresee():
                pass  # turns are found and answered here

    def _tell_beforehand(self, word: commands.ToEngine) -> None:
        if isinstance(word, commands.Converse):
            self._dialogue = Dialogue(word, self._abilities, self._sight(), self.within.tell, self._deliver)
        else:
            self.within.tell(word)

    def _sight(self) -> Sight:
        if self._abilities.images:
            return Seeing()
        return Reading(self._reader, self._looked) if self._reader is not None else Blind()

    def _looked(self) -> None:
        if self._dialogue is not None:
            self._dialogue.foresee()

    def take(self, words: Sequence[talk_events.FromEngine]) -> None:
        """Words of the engine within."""
        if self._dialogue is None:
            self._deliver(words)
        else:
            self._dialogue.take(words)

    def pause(self) -> None:
        self.within.pause()
        if self._dialogue is not None:
            self._dialogue.pause()

    def resume(self) -> None:
        self.within.resume()
        if self._dialogue is not None:
            self._dialogue.resume()

    def close(self) -> None:
        """Say nothing more."""
        if self._dialogue is not None:
            self._dialogue.close()
