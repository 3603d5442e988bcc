"""What all wire types share: structs with absent and unknown fields, JSON errors that name the field, server-sent events, framing."""

from antiphon.wire.codec.reading import Reader as Reader
from antiphon.wire.codec.sse import SseParser as SseParser
from antiphon.wire.codec.types import Wire as Wire, encode as encode
