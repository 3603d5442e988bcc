"""A conversation that passes its commands on to another one: the base of wrappers around an engine."""

from antiphon.engine_api import commands
from antiphon.engine_api.engine import EngineConversation
from antiphon.engine_api.options import ConversationKind

REATTACHABLE_KINDS = frozenset[ConversationKind]({"responses", "realtime"})
"""
Kinds of conversation whose requests carry the whole history: they can go on with another engine conversation when one
is lost.
"""


class ForwardingConversation:
    """
    Forwards to `inner`; a wrapper overrides what it treats differently.

    Attributes:
        inner: None while there is no other conversation yet, or no longer: commands are then dropped.
    """

    def __init__(self, inner: EngineConversation | None = None) -> None:
        self.inner = inner
        self._is_paused = False

    def attach(self, inner: EngineConversation) -> None:
        """Forward to `inner` from now on; it is paused first if this conversation is."""
        if self._is_paused:
            inner.pause()
        self.inner = inner

    def send(self, command: commands.EngineCommand) -> None:
        if self.inner is not None:
            self.inner.send(command)

    def pause(self) -> None:
        self._is_paused = True
        if self.inner is not None:
            self.inner.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self.inner is not None:
            self.inner.resume()
