"""Sound and pictures as clients of MiniCPM-o send them."""

import array
import base64
import math
import os
import struct
from pathlib import Path

RATE_HZ, RATE_OUT_HZ = 16_000, 24_000
JPEG = base64.b64decode(
    "/9j//gAQTGF2YzYyLjI4LjEwMgD/2wBDAAgEBAQEBAUFBQUFBQYGBgYGBgYGBgYGBgYHBwcICAgHBwcGBgcHCAgICAkJCQgICAgJCQoKCgwMCwsODg4RERT/xABLAAEA"
    "AAAAAAAAAAAAAAAAAAAAAQEAAAAAAAAAAAAAAAAAAAABEAEAAAAAAAAAAAAAAAAAAAAAEQEBAAAAAAAAAAAAAAAAAAAAIf/AABEIABAAEAMBIgACEQADEQD/2gAMAwEAAhEDEQA/AAAor//Z"
)
"""A grey picture."""


def silence(ms):
    return bytes(RATE_HZ * ms // 1000 * 4)


def speech(ms):
    """A tone that is loud enough to be speech."""
    count = RATE_HZ * ms // 1000
    return struct.pack(f"<{count}f", *(0.4 * math.sin(n * math.tau * 220 / RATE_HZ) for n in range(count)))


def pieces(sound, ms=100):
    size = len(silence(ms))
    return [sound[at : at + size] for at in range(0, len(sound), size)]


def seconds(floats):
    """How long sound of a server's is."""
    return len(floats) / 4 / RATE_OUT_HZ


def loudest(floats):
    return max(abs(sample) for sample in struct.unpack(f"<{len(floats) // 4}f", floats))


def question():
    """A person who names a card: two samples for every three of the recording, each the mean of its neighbours."""
    given = array.array("h", Path(os.environ["ANTIPHON_QUESTION"]).read_bytes())
    kept = [given[at + side] + given[at + side + 1] for at in range(0, len(given) - 2, 3) for side in (0, 1)]
    return struct.pack(f"<{len(kept)}f", *(sample / 65_536 for sample in kept))
