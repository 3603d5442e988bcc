"""
Full duplex for an engine that listens and takes turns: it seems to hear, see and speak at once.

`docs/reference/full-duplex.md` describes what it does. All other commands go to the engine unchanged.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import cast

from msgspec import structs

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, deliver_nowhere
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.duplex.conversation import DuplexConversation
from antiphon.engines.duplex.vision import ImageVision, NoVision, OcrReader, OcrVision, Vision


class DuplexAdapter:
    """
    A turn-taking engine, in full duplex.

    Args:
        inner: listens, detects turns, and answers, by voice if it can. The caller starts and stops it.
        ocr_reader: reads text in images if the engine can't see; None for no reading.
    """

    def __init__(self, inner: Engine, ocr_reader: OcrReader | None = None) -> None:
        self._inner = inner
        self._ocr_reader = ocr_reader
        sees = inner.capabilities.images or ocr_reader is not None
        self.capabilities = structs.replace(inner.capabilities, full_duplex=True, sees=sees)

    async def start(self) -> None:
        pass  # the caller starts the inner engine

    async def stop(self) -> None:
        pass

    async def count(self, request: commands.Respond) -> int:
        return await cast(CountingEngine, self._inner).count(request)  # called only where its capabilities say so

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation; in full duplex from `StartDuplex` on."""
        conversation = _AdapterConversation(self.capabilities, self._ocr_reader, deliver)
        async with self._inner.open(settings, conversation.receive) as conversation.inner:
            try:
                yield conversation
            finally:
                conversation.close()


class _AdapterConversation:
    """
    One conversation.

    Attributes:
        inner: the inner engine's conversation.
    """

    inner: EngineConversation

    def __init__(self, capabilities: Capabilities, ocr_reader: OcrReader | None, deliver: Deliver) -> None:
        self._capabilities = capabilities
        self._ocr_reader = ocr_reader
        self._deliver = deliver
        self._duplex: DuplexConversation | None = None

    def send(self, command: commands.EngineCommand) -> None:
        duplex = self._duplex
        if duplex is None:
            self._send_before_start(command)
            return
        match command:
            case commands.AppendAudio():
                duplex.append_audio(command)
            case commands.AppendImage():
                duplex.append_image(command)
            case commands.ForceListen():
                duplex.force_listen()
            case commands.Respond() | commands.Relay() | commands.Cancel():
                self.inner.send(command)  # an out-of-band response
            case commands.StartDuplex() | commands.Configure() | commands.CommitAudio() | commands.ClearAudio() | commands.Prepare():
                pass  # the duplex conversation detects and answers turns by itself

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
        """Take events of the inner engine."""
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
        """Deliver nothing more, and forget what was said."""
        self._deliver = deliver_nowhere
        if self._duplex is not None:
            self._duplex.close()
            self._duplex = None  # it refers to the inner conversation, which delivers to this
