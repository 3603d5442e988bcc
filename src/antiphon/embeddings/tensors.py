"""
Reads weights in the safetensors format: a header in JSON, then the numbers.

The format: 8 bytes with the header's size, little-endian; the header, per tensor `dtype`, `shape` and `data_offsets`
from the end of the header; the data (github.com/huggingface/safetensors, README).
"""

from math import prod
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float32]

MAX_HEADER_BYTES = 1 << 20


class _Tensor(Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def load(path: Path) -> dict[str, Floats]:
    """
    The tensors of 32-bit floats by name, mapped from the file: what several processes load is in memory once.

    Raises:
        OSError, ValueError: the file can't be read, or is none of this format.
    """
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if not 0 < header_bytes <= MAX_HEADER_BYTES:
            raise ValueError("it doesn't begin with a header of safetensors")
        header = msgspec.json.decode(file.read(header_bytes), type=dict[str, msgspec.Raw])
    data = np.memmap(path, np.uint8, "r", offset=8 + header_bytes)
    tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items() if name != "__metadata__"}
    return {name: _floats(name, tensor, data) for name, tensor in tensors.items() if tensor.dtype == "F32"}


def _floats(name: str, tensor: _Tensor, data: NDArray[np.uint8]) -> Floats:
    begin, end = tensor.data_offsets
    # A damaged download must fail here, and not read what is beside it.
    if not 0 <= begin <= end <= data.size or end - begin != 4 * prod(tensor.shape):
        raise ValueError(f"the place of '{name}' is not what its shape needs")
    return np.frombuffer(data[begin:end].data, "<f4").reshape(tensor.shape)
