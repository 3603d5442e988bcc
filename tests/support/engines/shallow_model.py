"""
The small language model with its first layers only: it reads 16 times as fast and writes 3 times as fast, without making sense.

For tests of all that is not what the model says: tokens, slots, caches, limits, cancelling.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import re
import struct
from pathlib import Path

FILE = Path("smollm2-135m-instruct") / "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS = 2

_NUMBER_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, None, None, 8, 8, 8)
_TEXT, _ARRAY = 8, 9
_ALIGNMENT = 32


class _Reader:
    """Reads a file's head, and remembers where it is."""

    def __init__(self, content):
        self.content = content
        self.at = 0

    def number(self, format):
        (value,) = struct.unpack_from(f"<{format}", self.content, self.at)
        self.at += struct.calcsize(f"<{format}")
        return value

    def text(self):
        size = self.number("Q")
        self.at += size
        return bytes(self.content[self.at - size : self.at]).decode()

    def skip(self, type):
        if type == _TEXT:
            self.text()
        elif type == _ARRAY:
            kind, count = self.number("I"), self.number("Q")
            if kind in (_TEXT, _ARRAY):
                for _ in range(count):
                    self.skip(kind)
            else:
                self.at += count * _NUMBER_SIZES[kind]
        else:
            self.at += _NUMBER_SIZES[type]


def _text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def _padded(size):
    return -size % _ALIGNMENT


def shallow(content):
    """A GGUF file's content with that of its first layers only."""
    reader = _Reader(memoryview(content))
    magic, version = reader.number("I"), reader.number("I")
    tensor_count, value_count = reader.number("Q"), reader.number("Q")
    values = bytearray()
    for _ in range(value_count):
        start, key, type = reader.at, reader.text(), reader.number("I")
        reader.skip(type)
        values += content[start : reader.at] if not key.endswith(".block_count") else _text(key) + struct.pack("<II", type, LAYERS)
    tensors = []
    for _ in range(tensor_count):
        name, rank = reader.text(), reader.number("I")
        shape = [reader.number("Q") for _ in range(rank)]
        tensors.append((name, shape, reader.number("I"), reader.number("Q")))
    weights = reader.at + _padded(reader.at)
    ends = sorted([*(offset for *_, offset in tensors), len(content) - weights])
    head, parts, size = bytearray(), [], 0
    for name, shape, type, offset in tensors:
        if (layer := re.match(r"blk\.(\d+)\.", name)) and int(layer[1]) >= LAYERS:
            continue
        part = content[weights + offset : weights + ends[ends.index(offset) + 1]]
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, size)
        parts += [part, bytes(_padded(len(part)))]
        size += len(part) + _padded(len(part))
    start = struct.pack("<IIQQ", magic, version, len(parts) // 2, value_count) + values + head
    return b"".join([start, bytes(_padded(len(start))), *parts])


def write(weights, folder):
    """The path of a file in `folder` with the model, which is made of that in the folder with all weights."""
    path = folder / "shallow.gguf"
    path.write_bytes(shallow((weights / FILE).read_bytes()))
    return path
