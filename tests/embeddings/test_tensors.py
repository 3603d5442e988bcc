"""Files of weights: what is read, and what is refused before it is used."""

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.embeddings import tensors
from support.embeddings.tiny_model import write_tensors


def test_floats_are_read_as_they_were_written_and_nothing_else_is(tmp_path):
    path = tmp_path / "w.safetensors"
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_tensors(path, {"ids": np.arange(3), "a": numbers, "b": numbers[0]})
    loaded = tensors.load(path)
    assert loaded.keys() == {"a", "b"}
    assert np.array_equal(loaded["a"], numbers) and np.array_equal(loaded["b"], numbers[0])


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2]},
        [],
    ],
)
def test_a_tensor_that_is_not_in_the_file_is_refused(tmp_path, entry):
    path = tmp_path / "w.safetensors"
    header = json.dumps({"a": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError):
        tensors.load(path)


@given(content=st.binary(max_size=64))
def test_any_other_file_is_refused_with_one_kind_of_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("w") / "w.safetensors"
    path.write_bytes(content)
    try:
        assert tensors.load(path) == {}
    except ValueError:
        pass
