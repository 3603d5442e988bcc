"""Audio and images as MiniCPM-o clients send them."""

import base64
import json
import struct


def base64_of(content):
    return base64.b64encode(content).decode()


def floats(*samples):
    return struct.pack(f"<{len(samples)}f", *samples)


def silence(ms):
    """A client's audio of a length, in base64."""
    return base64_of(bytes(16 * ms * 4))


def jpeg(width=2, height=2):
    """The start of a JPEG file, up to the size of the image."""
    start_of_frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    return b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + b"JFIF\x00" + bytes(9) + start_of_frame + b"\xff\xd9"


def frame(type, **fields):
    return json.dumps({"type": type, **fields}).encode()


def append(**given):
    return frame("input.append", input=given)
