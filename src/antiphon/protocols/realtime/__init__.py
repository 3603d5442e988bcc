"""The OpenAI Realtime API as a protocol machine."""

from antiphon.protocols.realtime.session import (
    RealtimeSession as RealtimeSession,
    UnreadableRealtimeEvent as UnreadableRealtimeEvent,
)
from antiphon.protocols.realtime.settings import RealtimeSessionConfig as RealtimeSessionConfig
