"""Small ONNX models, written field by field: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto"""

import struct

FLOAT, INT64 = 1, 7


def varint(value):
    return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80,)) + varint(value >> 7)


def number(field, value):
    return varint(field << 3) + varint(value)


def part(field, content):
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def weight(name, values, shape):
    kind, packed = (INT64, "q") if isinstance(values[0], int) else (FLOAT, "f")
    dims = b"".join(number(1, size) for size in shape)
    return part(5, dims + number(2, kind) + part(8, name) + part(9, struct.pack(f"<{len(values)}{packed}", *values)))


def node(op_type, inputs, output, *attributes):
    return part(1, b"".join(part(1, name) for name in inputs) + part(2, output) + part(4, op_type) + b"".join(attributes))


def attribute(name, value):
    if isinstance(value, bytes):
        return part(5, part(1, name) + part(6, value) + number(20, 5))
    if isinstance(value, int):
        return part(5, part(1, name) + number(3, value) + number(20, 2))
    return part(5, part(1, name) + b"".join(number(8, each) for each in value) + number(20, 7))


def value(field, name, kind):
    return part(field, part(1, name) + part(2, part(1, number(1, kind))))


def model(*fields):
    return number(1, 8) + part(7, part(2, "graph") + b"".join(fields)) + part(8, number(2, 17))


def voice(kernel=5, *, weight_name="dec.conv_pre.weight", hears_input=False):
    """A model built like a Piper voice: a phoneme lasts for as many frames as its id, a frame is one sample."""
    half = kernel // 2
    return model(
        value(11, "input", INT64),
        value(12, "output", FLOAT),
        weight("row", [1, -1], [2]),
        weight("line", [1, 1, -1], [3]),
        weight(weight_name, [1 / (1 + abs(at - half)) for at in range(kernel)], [1, 1, kernel]),
        weight("none", [0], [1]),
        weight("pairs", [1, 2], [2]),
        node("Cast", ["input"], "floats", attribute("to", FLOAT)),
        node("Ceil", ["floats"], "durations"),
        # As many ones as there are frames, and their running sum through a sine: latents that are nowhere the same.
        node("ReduceSum", ["input"], "frames", attribute("keepdims", 0)),
        node("Reshape", ["frames", "one"], "shape"),
        weight("one", [1], [1]),
        node("ConstantOfShape", ["shape"], "zeros"),
        node("Cos", ["zeros"], "ones"),
        weight("axis", [0], []),
        node("CumSum", ["ones", "axis"], "times"),
        node("Mul", ["times", "times"], "squares"),
        node("Sin", ["squares"], "waves"),
        node("Reshape", ["waves", "line"], "latents"),
        node("Conv", ["latents", weight_name], "sound", attribute("kernel_shape", [kernel]), attribute("pads", [half, half])),
        *(
            [node("ReduceMax", ["floats"], "loudest", attribute("keepdims", 0)), node("Mul", ["sound", "loudest"], "output")]
            if hears_input
            else [node("Tanh", ["sound"], "output")]
        ),
    )
