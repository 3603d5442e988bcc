"""
Silero's model as another graph with the same weights: each layer is one matrix product for all frames of a batch.

The graph in the file convolves each frame by itself. Its frames are short, four steps in the first layer and one in the
last, so that its products are small; and its Fourier transform does not use that sine and cosine are symmetric. For 32
frames this one takes a third of the time; probabilities differ by 1e-6 at most (docs/decisions/0064).

A frame has four overlapping windows of 256 samples. `fold` adds and subtracts the two halves of each: as the first
sample's weight is 0, and the basis even or odd around the middle, half of the products are left.

Source: the graph in silero_vad.onnx of silero-vad 6 (MIT), at 16 kHz.
"""

import numpy as np
import numpy.typing as npt

from antiphon.speech.onnx_graph import encode_field, encode_varint, find_constants

FloatArray = npt.NDArray[np.float32]

STEPS = 4
"""How many windows a frame has."""
CONTEXT_SAMPLES, FRAME_SAMPLES, PADDING_SAMPLES = 64, 512, 64
"""A row of `fold`: samples of the frame before, the frame, and the end of the frame backwards, which `fold` writes."""
ROW_SAMPLES = CONTEXT_SAMPLES + FRAME_SAMPLES + PADDING_SAMPLES
STATE_SIZE = 128

_WINDOW, _HOP = 256, 128
_MIDDLE = _WINDOW // 2
_BINS = _MIDDLE + 1
_BASIS = "stft.forward_basis_buffer"

_SHAPES = {
    _BASIS: (2 * _BINS, _WINDOW),
    "encoder.0.reparam_conv.weight": (128, _BINS, 3),
    "encoder.0.reparam_conv.bias": (128,),
    "encoder.1.reparam_conv.weight": (64, 128, 3),
    "encoder.1.reparam_conv.bias": (64,),
    "encoder.2.reparam_conv.weight": (64, 64, 3),
    "encoder.2.reparam_conv.bias": (64,),
    "encoder.3.reparam_conv.weight": (STATE_SIZE, 64, 3),
    "encoder.3.reparam_conv.bias": (STATE_SIZE,),
    "decoder.rnn.weight_ih": (4, STATE_SIZE, STATE_SIZE),
    "decoder.rnn.weight_hh": (4, STATE_SIZE, STATE_SIZE),
    "decoder.rnn.bias_ih": (4, STATE_SIZE),
    "decoder.rnn.bias_hh": (4, STATE_SIZE),
    "decoder.decoder.2.weight": (STATE_SIZE, 1),
    "decoder.decoder.2.bias": (1,),
}
"""The weights that the graph needs, by the end of their names in the file."""

_GATES = [0, 3, 1, 2]  # ONNX orders them input, output, forget, cell; PyTorch input, forget, cell, output

# https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_IR_VERSION, _OPSET_VERSION = 8, 17
_FLOAT, _INT64 = 1, 7
_INT_ATTRIBUTE = 2


def fold(rows: FloatArray) -> dict[str, FloatArray]:
    """
    The inputs `even` and `odd` of the graph.

    Args:
        rows: by frame, `ROW_SAMPLES`; its last part is overwritten.
    """
    count = len(rows)
    end = CONTEXT_SAMPLES + FRAME_SAMPLES
    rows[:, end:] = rows[:, end - 2 : end - 2 - PADDING_SAMPLES : -1]
    strides = (_HOP * rows.itemsize, rows.strides[0], rows.itemsize)
    windows = np.lib.stride_tricks.as_strided(rows, (STEPS, count, _WINDOW), strides)
    even = np.empty((STEPS, count, _MIDDLE), np.float32)
    odd = np.empty((STEPS, count, _MIDDLE - 1), np.float32)
    first, last = windows[:, :, 1:_MIDDLE], windows[:, :, :_MIDDLE:-1]
    np.add(first, last, out=even[:, :, :-1])
    np.subtract(first, last, out=odd)
    even[:, :, -1] = windows[:, :, _MIDDLE]
    return {"even": even, "odd": odd}


def build(model: bytes) -> bytes:
    """
    The graph for the model in these bytes. Inputs: what `fold` gives, and `state`. Outputs: `probability` and
    `next_state`. By step, frame and channel; states by hidden or cell, frame and channel.

    Raises:
        ValueError: it is not the model whose weights are known here.
    """
    weights = _read_weights(model)
    graph = _Graph()
    _add_spectrum(graph, weights[_BASIS])
    _add_encoder(graph, weights)
    _add_decoder(graph, weights)
    return graph.encode(inputs=("even", "odd", "state"), outputs=("probability", "next_state"))


def _read_weights(model: bytes) -> dict[str, FloatArray]:
    constants = find_constants(model)
    basis_bytes = 4 * 2 * _BINS * _WINDOW  # the one at 8 kHz, under the same name in another branch, is smaller
    prefixes = [name.removesuffix(_BASIS) for name, numbers in constants.items() if name.endswith(_BASIS) and len(numbers) == basis_bytes]
    try:
        (prefix,) = prefixes
        weights = {name: np.frombuffer(constants[prefix + name], "<f4").reshape(shape) for name, shape in _SHAPES.items()}
    except (KeyError, ValueError):
        raise ValueError("it has not the weights of Silero's model for 16 kHz") from None
    real, imaginary = np.split(weights[_BASIS], 2)
    is_even = np.array_equal(real[:, 1:_MIDDLE], real[:, :_MIDDLE:-1]) and not real[:, 0].any()
    is_odd = np.array_equal(imaginary[:, 1:_MIDDLE], -imaginary[:, :_MIDDLE:-1]) and not imaginary[:, [0, _MIDDLE]].any()
    if not is_even or not is_odd:
        raise ValueError("its Fourier transform is not symmetric")
    return weights


def _add_spectrum(graph: "_Graph", basis: FloatArray) -> None:
    """The magnitude of each bin, as `magnitude`."""
    real, imaginary = np.split(basis, 2)
    graph.add("MatMul", ["even", graph.weight(real[:, 1 : _MIDDLE + 1].T)], ["real"])
    graph.add("MatMul", ["odd", graph.weight(imaginary[:, 1:_MIDDLE].T)], ["imaginary"])
    graph.add("Mul", ["real", "real"], ["real_power"])
    graph.add("Mul", ["imaginary", "imaginary"], ["imaginary_power"])
    graph.add("Add", ["real_power", "imaginary_power"], ["power"])
    graph.add("Sqrt", ["power"], ["magnitude"])


def _add_encoder(graph: "_Graph", weights: dict[str, FloatArray]) -> None:
    """
    Four convolutions over three steps each, as `features`; the second and third take every other step.

    Before the first and after the last step are zeros, which are left out with their weights.
    """
    kernels = [weights[f"encoder.{layer}.reparam_conv.weight"].transpose(2, 1, 0) for layer in range(4)]
    biases = [graph.weight(weights[f"encoder.{layer}.reparam_conv.bias"]) for layer in range(4)]

    def convolve(layer: int, steps: list[str], taps: slice, output: str) -> str:
        """A layer where it sees these steps with these taps; steps that are two in one are two results in one."""
        joint = steps[0] if len(steps) == 1 else graph.add("Concat", steps, [f"{output}_steps"], axis=2)
        product = graph.add("MatMul", [joint, graph.weight(np.concatenate(kernels[layer][taps]))], [f"{output}_product"])
        return graph.add("Relu", [graph.add("Add", [product, biases[layer]], [f"{output}_sum"])], [output])

    begin, middle, end = slice(1, 3), slice(0, 3), slice(0, 2)
    steps = [f"step_{step}" for step in range(STEPS)]
    graph.add("Split", ["magnitude"], steps, axis=0)
    neighbours = [graph.add("Concat", steps[at : at + 3], [f"around_{at + 1}"], axis=2) for at in (0, 1)]
    first = convolve(0, steps[:2], begin, "first_0")
    both = convolve(0, [graph.add("Concat", neighbours, ["around"], axis=0)], middle, "first_1_2")
    last = convolve(0, steps[2:], end, "first_3")
    graph.add("Split", [both], ["first_1", "first_2"], axis=0)
    second = [convolve(1, [first, "first_1"], begin, "second_0"), convolve(1, ["first_1", "first_2", last], middle, "second_1")]
    convolve(3, [convolve(2, second, begin, "third")], slice(1, 2), "features")


def _add_decoder(graph: "_Graph", weights: dict[str, FloatArray]) -> None:
    """A step of a recurrent layer, as `next_state`, and from it the `probability`."""
    kernels = [graph.weight(weights[f"decoder.rnn.weight_{part}"][_GATES].reshape(1, -1, STATE_SIZE)) for part in ("ih", "hh")]
    biases = np.stack([weights[f"decoder.rnn.bias_{part}"][_GATES] for part in ("ih", "hh")])
    graph.add("Split", ["state"], ["hidden", "cell"], axis=0)
    inputs = ["features", *kernels, graph.weight(biases.reshape(1, -1)), "", "hidden", "cell"]
    graph.add("LSTM", inputs, ["", "next_hidden", "next_cell"], hidden_size=STATE_SIZE)
    graph.add("Concat", ["next_hidden", "next_cell"], ["next_state"], axis=0)
    graph.add("Relu", ["next_hidden"], ["loud"])
    graph.add("MatMul", ["loud", graph.weight(weights["decoder.decoder.2.weight"])], ["score"])
    graph.add("Add", ["score", graph.weight(weights["decoder.decoder.2.bias"])], ["biased_score"])
    graph.add("Sigmoid", ["biased_score"], ["probability"])


class _Graph:
    """Builds a model, node by node."""

    def __init__(self) -> None:
        self._fields: list[bytes] = []
        self._weight_count = 0

    def weight(self, values: FloatArray) -> str:
        """A constant; returns its name."""
        self._weight_count += 1
        name = f"weight_{self._weight_count}"
        dimensions = b"".join(_number(1, size) for size in values.shape)
        raw = encode_field(9, np.ascontiguousarray(values, "<f4").tobytes())
        self._fields.append(encode_field(5, dimensions + _number(2, _FLOAT) + encode_field(8, name.encode()) + raw))
        return name

    def add(self, op_type: str, inputs: list[str], outputs: list[str], **attributes: int) -> str:
        """A node; returns the name of its first output."""
        names = [encode_field(field, name.encode()) for field, names in ((1, inputs), (2, outputs)) for name in names]
        settings = [
            encode_field(5, encode_field(1, name.encode()) + _number(3, value) + _number(20, _INT_ATTRIBUTE))
            for name, value in attributes.items()
        ]
        self._fields.append(encode_field(1, b"".join((*names, encode_field(4, op_type.encode()), *settings))))
        return outputs[0]

    def encode(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> bytes:
        kind = encode_field(2, encode_field(1, _number(1, _FLOAT)))  # of any shape
        values = [encode_field(11, encode_field(1, name.encode()) + kind) for name in inputs]
        values += [encode_field(12, encode_field(1, name.encode()) + kind) for name in outputs]
        graph = encode_field(2, b"silero") + b"".join((*self._fields, *values))
        return _number(1, _IR_VERSION) + encode_field(7, graph) + encode_field(8, _number(2, _OPSET_VERSION))


def _number(field: int, value: int) -> bytes:
    return encode_varint(field << 3) + encode_varint(value)
