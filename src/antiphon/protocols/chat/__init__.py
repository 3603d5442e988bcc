"""Chat Completions as a protocol machine."""

from antiphon.protocols.chat.request import ResolvedChat as ResolvedChat
from antiphon.protocols.chat.session import ChatSession as ChatSession
