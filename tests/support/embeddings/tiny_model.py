"""A tiny MiniLM: layers of width 64 over a vocabulary of letters, with random weights."""

import json
from pathlib import Path

import numpy as np

DIMENSIONS = 64
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "!"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCABULARY = {piece: id for id, piece in enumerate([*WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])}


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """The tensors of the model, with their shapes."""
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), DIMENSIONS),
        "embeddings.position_embeddings.weight": (512, DIMENSIONS),
        "embeddings.token_type_embeddings.weight": (2, DIMENSIONS),
        "embeddings.LayerNorm.weight": (DIMENSIONS,),
        "embeddings.LayerNorm.bias": (DIMENSIONS,),
    }
    for layer in range(layers):
        for part, (rows, columns) in {
            "attention.self.query": (DIMENSIONS, DIMENSIONS),
            "attention.self.key": (DIMENSIONS, DIMENSIONS),
            "attention.self.value": (DIMENSIONS, DIMENSIONS),
            "attention.output.dense": (DIMENSIONS, DIMENSIONS),
            "intermediate.dense": (4 * DIMENSIONS, DIMENSIONS),
            "output.dense": (DIMENSIONS, 4 * DIMENSIONS),
        }.items():
            found |= {f"encoder.layer.{layer}.{part}.weight": (rows, columns), f"encoder.layer.{layer}.{part}.bias": (rows,)}
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            found |= {f"encoder.layer.{layer}.{part}.{name}": (DIMENSIONS,) for name in ("weight", "bias")}
    return found


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A file in the safetensors format."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        dtype = {"float32": "F32", "int64": "I64"}[tensor.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(tensor.tobytes() for tensor in tensors.values()))


def write_tiny_model(folder: Path, layers: int = 2) -> Path:
    """Write the model's two files to a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    tensors = {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes(layers).items()}
    tensors |= {name: 1 + tensor for name, tensor in tensors.items() if name.endswith("LayerNorm.weight")}
    write_tensors(folder / "model.safetensors", {"embeddings.position_ids": np.arange(512), **tensors})
    tokenizer = {"normalizer": {"lowercase": True}, "model": {"type": "WordPiece", "vocab": VOCABULARY}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
