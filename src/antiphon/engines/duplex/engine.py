"""
Full duplex with an engine that listens and takes turns: it seems to hear, see and speak at once.

`docs/reference/full-duplex.md` describes what it does. All that is no full duplex goes to the engine as it is.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence

from msgspec import structs

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.duplex.conversation import DuplexConversation
from antiphon.engines.duplex.vision import ImageVision, NoVision, OcrReader, OcrVision, Vision


def can_adapt(capabilities: Capabilities) -> bool:
    """Whether an engine of those abilities, which has no full duplex of its own, can have it by `Duplex`."""
    return capabilities.listens and bool(capabilities.turn_detection) and not capabilities.full_duplex


class DuplexAdapter:
    """
    An engine of turns, in full duplex.

    Args:
        within: listens, tells turns, and answers, aloud where it can. Whoever made it starts and stops it.
        reader: reads what is written on pictures, where the engine can't see; None where nobody does.
    """

    def __init__(self, inner: Engine, ocr_reader: OcrReader | None = None) -> None:
        self._inner = inner
        self._ocr_reader = ocr_reader
        sees = inner.capabilities.images or ocr_reader is not None
        self.capabilities = structs.replace(inner.capabilities, full_duplex=True, sees=sees)

    async def start(self) -> None:
        """Nothing of its own to load."""

    async def stop(self) -> None:
        """Nothing of its own to let go of."""

    async def count(self, request: commands.Respond) -> int:
        """The tokens that the engine within reads."""
        within: CountingEngine = self._inner  # type: ignore[assignment]  # asked only where its abilities say so
        return await within.count(request)

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation; in full duplex once it is told so."""
        conversation = _AdapterConversation(self.capabilities, self._ocr_reader, deliver)
        async with self._inner.open(settings, conversation.receive) as within:
            conversation.inner = within
            try:
                yield conversation
            finally:
                conversation.close()


class _AdapterConversation:
    """
    One conversation.

    Attributes:
        within: the engine's side of it.
    """

    inner: EngineConversation

    def __init__(self, capabilities: Capabilities, ocr_reader: OcrReader | None, deliver: Deliver) -> None:
        self._capabilities = capabilities
        self._ocr_reader = ocr_reader
        self._deliver = deliver
        self._duplex: DuplexConversation | None = None

    def send(self, command: commands.EngineCommand) -> None:
        dialogue = self._duplex
        if dialogue is None:
            self._send_before_start(command)
            return
        match command:
            case commands.AppendAudio():
                dialogue.append_audio(command)
            case commands.AppendImage():
                dialogue.append_image(command)
            case commands.ForceListen():
                dialogue.force_listen()
            case commands.Respond() | commands.Cancel():
                self.inner.send(command)  # something beside the conversation
            case commands.StartDuplex() | commands.Configure() | commands.CommitAudio() | commands.ClearAudio() | commands.Prepare():
                pass  # turns are found and answered here

    def _send_before_start(self, command: commands.EngineCommand) -> None:
        if isinstance(command, commands.StartDuplex):
            self._duplex = DuplexConversation(command, self._capabilities, self._new_vision(), self.inner.send, self._deliver)
        else:
            self.inner.send(command)

    def _new_vision(self) -> Vision:
        if self._capabilities.images:
            return ImageVision()
        return OcrVision(self._ocr_reader, self._on_vision_change) if self._ocr_reader is not None else NoVision()

    def _on_vision_change(self) -> None:
        if self._duplex is not None:
            self._duplex.prepare()

    def receive(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Words of the engine within."""
        if self._duplex is None:
            self._deliver(events)
        else:
            self._duplex.receive(events)

    def pause(self) -> None:
        self.inner.pause()
        if self._duplex is not None:
            self._duplex.pause()

    def resume(self) -> None:
        self.inner.resume()
        if self._duplex is not None:
            self._duplex.resume()

    def close(self) -> None:
        """Say nothing more."""
        if self._duplex is not None:
            self._duplex.close()
