"""
What all wire types share: structs with absent and unknown fields, JSON errors that name the field, server-sent events,
framing.
"""

from antiphon.wire.codec.sse import SseParser as SseParser
