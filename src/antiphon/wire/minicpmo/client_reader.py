"""
Reads the events of one client, and its pieces of audio without parsing them.

A client writes every `input.append` alike: only the base64 of the audio differs. So what is around it is learned, and
compared byte by byte: a frame that has it, and base64 in between, is the same event with other audio. Base64 has no
quote, backslash, comma or bracket, so it can't change what is around it. All else is decoded in the ordinary way, and so
is whatever is invalid, for its error (docs/decisions/0047).
"""

import base64
import struct
from collections.abc import Callable

import msgspec

from antiphon.errors import ClientError
from antiphon.wire.codec.base64_strings import decode_base64_string
from antiphon.wire.codec.json_errors import JSON_ERRORS
from antiphon.wire.minicpmo import media
from antiphon.wire.minicpmo.client_events import ClientEvent, DuplexAppend, IgnoredEvent, Mode, decode_client

_PROBE = base64.b64encode(struct.pack("<2f", 0.5, -0.25))
_PROBE_PCM = struct.pack("<2h", 16_384, -8_192)
_AROUND_LIMIT_BYTES = 1024
_MAX_FAILURES = 16
"""How often in a row a template may not fit before no more is learned: a client may number what it sends."""

_LIMIT_BYTES = media.AUDIO_LIMIT_S * media.RATE_IN_HZ * media.FLOAT_BYTES


class _AppendTemplate:
    """
    An event of a known form.

    Args:
        before: the frame up to the base64, with the quote.
        after: the rest, from its other quote on.
        event: the event, with whatever audio.
    """

    def __init__(self, before: bytes, after: bytes, event: DuplexAppend) -> None:
        self._before, self._after = before, after
        self._start, self._end = len(before) - 1, 1 - len(after) or None
        self._force_listen = event.force_listen
        self._input_id, self._response_id = event.input_id, event.response_id
        self._limit_bytes = len(before) + len(after) + _LIMIT_BYTES * 4 // 3

    def read(self, frame: memoryview) -> DuplexAppend | None:
        """The event; None if the frame has another form, or its audio is not valid."""
        if len(frame) > self._limit_bytes or frame[: self._start + 1] != self._before or frame[-len(self._after) :] != self._after:
            return None
        try:
            floats = decode_base64_string(frame[self._start : self._end])  # which copies nothing
            pcm = media.decode_samples(floats, "")
        except (*JSON_ERRORS, ClientError):
            return None
        return DuplexAppend(pcm=pcm, force_listen=self._force_listen, input_id=self._input_id, response_id=self._response_id)


class ClientEventReader:
    """
    Reads the frames of one client.

    Args:
        decode: decodes frames of unknown form.
    """

    def __init__(self, mode: Mode, decode: Callable[[bytes, Mode], ClientEvent | IgnoredEvent] = decode_client) -> None:
        self._mode: Mode = mode
        self._decode = decode
        self._template: _AppendTemplate | None = None
        self._failures = 0

    def read_known(self, frame: memoryview) -> DuplexAppend | None:
        """
        The event of a frame of known form; None for any other.

        Args:
            frame: which may be no valid UTF-8: one of known form is, as what it is compared with was. It is not kept.
        """
        if self._template is None or (event := self._template.read(frame)) is None:
            return None
        self._failures = 0
        return event

    def read(self, frame: bytes) -> ClientEvent | IgnoredEvent:
        """
        Decode a frame.

        Raises:
            ClientError: it is no valid event.
        """
        if (event := self.read_known(memoryview(frame))) is not None:
            return event
        other = self._decode(frame, self._mode)
        if type(other) is DuplexAppend and other.pcm and not other.frames and self._failures < _MAX_FAILURES:
            self._failures += 1
            self._template = self._learn(frame, other)
        return other

    def _learn(self, frame: bytes, event: DuplexAppend) -> _AppendTemplate | None:
        """A template from an event, if its longest string is its audio: another one in its place must be other audio."""
        longest = max(frame.split(b'"'), key=len)
        before, separator, after = frame.partition(b'"' + longest + b'"')
        if not separator or len(before) + len(after) > _AROUND_LIMIT_BYTES:
            return None
        before, after = before + b'"', b'"' + after
        try:
            probe = self._decode(before + _PROBE + after, self._mode)
        except ClientError:
            return None
        if probe != msgspec.structs.replace(event, pcm=_PROBE_PCM):
            return None
        return _AppendTemplate(before, after, event)
