"""
Cuts a part out of an ONNX model, as bytes that load like the whole, and finds its constants.

A model is a protocol buffer. Only the fields that are needed are read; weights are copied as they are. So it takes no
package that knows the format, and no second file beside the verified one.

Source: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

_GRAPH_OF_MODEL = 7
_NODE_OF_GRAPH, _WEIGHT_OF_GRAPH, _INPUT_OF_GRAPH, _OUTPUT_OF_GRAPH = 1, 5, 11, 12
_INPUT_OF_NODE, _OUTPUT_OF_NODE, _OP_TYPE_OF_NODE, _ATTRIBUTE_OF_NODE = 1, 2, 4, 5
_GRAPHS_OF_ATTRIBUTE = (6, 11)
_TENSOR_OF_ATTRIBUTE, _RAW_DATA_OF_WEIGHT = 5, 9
_NAME_OF_WEIGHT, _NAME_OF_VALUE, _TYPE_OF_VALUE = 8, 1, 2
_VARINT, _BYTES, _FIXED_SIZES = 0, 2, {1: 8, 5: 4}  # wire types

_FLOAT_TENSOR = b"\x0a\x02\x08\x01"
"""A type: `tensor_type { elem_type: FLOAT }`, of any shape."""


class _Node:
    """
    A node of a graph.

    Attributes:
        dependencies: the tensors that it reads, and those that the graphs in its attributes read.
    """

    def __init__(self, message: memoryview) -> None:
        self.message = message
        self.op_type = ""
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.dependencies: set[str] = set()
        for number, content in _read_fields(message):
            if number == _INPUT_OF_NODE:
                self.inputs.append(_decode(content))
            elif number == _OUTPUT_OF_NODE:
                self.outputs.append(_decode(content))
            elif number == _OP_TYPE_OF_NODE:
                self.op_type = _decode(content)
            elif number == _ATTRIBUTE_OF_NODE:
                self.dependencies |= _inner_dependencies(content)
        self.dependencies.update(self.inputs)


def _inner_dependencies(attribute: memoryview) -> set[str]:
    graphs = [graph for number, graph in _read_fields(attribute) if number in _GRAPHS_OF_ATTRIBUTE]
    nodes = [_Node(message) for graph in graphs for message in _contents(graph, _NODE_OF_GRAPH)]
    return {name for node in nodes for name in node.dependencies}


class OnnxGraph:
    """
    The graph of the model in these bytes.

    Raises:
        ValueError: they are no model.
    """

    def __init__(self, model: bytes) -> None:
        self._model = memoryview(model)
        try:
            self._read()
        except (IndexError, ValueError):
            raise ValueError("it is not an ONNX model") from None

    def _read(self) -> None:
        (graph,) = _contents(self._model, _GRAPH_OF_MODEL)
        self._nodes = [_Node(message) for message in _contents(graph, _NODE_OF_GRAPH)]
        self._weights = _by_name(_contents(graph, _WEIGHT_OF_GRAPH), _NAME_OF_WEIGHT)
        self._inputs = _by_name(_contents(graph, _INPUT_OF_GRAPH), _NAME_OF_VALUE)
        self.outputs = tuple(_by_name(_contents(graph, _OUTPUT_OF_GRAPH), _NAME_OF_VALUE))

    def only_output(self, op_type: str) -> str | None:
        """The output of the only node with this op type; None if there are several or none."""
        outputs = [output for node in self._nodes if node.op_type == op_type for output in node.outputs]
        return outputs[0] if len(outputs) == 1 else None

    def input_weighted_by(self, weight: str) -> str | None:
        """What the only node with this weight applies it to; None if there are several or none."""
        inputs = [node.inputs[0] for node in self._nodes if weight in node.inputs[1:]]
        return inputs[0] if len(inputs) == 1 else None

    def extract(self, outputs: Sequence[str], inputs: Collection[str] = ()) -> bytes:
        """
        A model with the nodes and weights that these outputs need.

        Args:
            inputs: tensors of floats that become inputs, so that nothing is computed for them.
        """
        producers = {output: node for node in self._nodes for output in node.outputs}
        names, pending = set(inputs), list(outputs)
        while pending:
            name = pending.pop()
            if name not in names:
                names.add(name)
                if name in producers:
                    pending += producers[name].dependencies
        results = names.difference(inputs)
        fields = [_field(_NODE_OF_GRAPH, node.message) for node in self._nodes if not results.isdisjoint(node.outputs)]
        fields += [_field(_WEIGHT_OF_GRAPH, weight) for name, weight in self._weights.items() if name in names]
        fields += [_field(_INPUT_OF_GRAPH, value) for name, value in self._inputs.items() if name in names]
        fields += [_field(_INPUT_OF_GRAPH, _encode_name(name) + encode_field(_TYPE_OF_VALUE, _FLOAT_TENSOR)) for name in inputs]
        fields += [_field(_OUTPUT_OF_GRAPH, _encode_name(name)) for name in outputs]
        others = [self._model[start:end] for number, start, _, end in _scan(self._model) if number != _GRAPH_OF_MODEL]
        parts = [part for field in fields for part in field]
        # Joined once, as weights are large.
        return b"".join((*others, _encode_head(_GRAPH_OF_MODEL, sum(map(len, parts))), *parts))


def extra_output(name: str) -> bytes:
    """
    Bytes that add an output when appended to a model: protobuf merges a second occurrence of an embedded message into
    the first.
    """
    return encode_field(_GRAPH_OF_MODEL, encode_field(_OUTPUT_OF_GRAPH, _encode_name(name)))


def find_constants(model: bytes) -> dict[str, memoryview]:
    """
    The raw numbers of each node `Constant`, by the name of its output; those of the graphs within nodes too.

    Raises:
        ValueError: it is no model.
    """
    try:
        return {name: numbers for graph in _contents(memoryview(model), _GRAPH_OF_MODEL) for name, numbers in _constants(graph)}
    except (IndexError, ValueError):
        raise ValueError("it is not an ONNX model") from None


def _constants(graph: memoryview) -> Iterator[tuple[str, memoryview]]:
    for node in _contents(graph, _NODE_OF_GRAPH):
        outputs = [_decode(output) for output in _contents(node, _OUTPUT_OF_NODE)]
        for attribute in _contents(node, _ATTRIBUTE_OF_NODE):
            for number, content in _read_fields(attribute):
                if number in _GRAPHS_OF_ATTRIBUTE:
                    yield from _constants(content)
                elif number == _TENSOR_OF_ATTRIBUTE:
                    yield from ((output, numbers) for output in outputs for numbers in _contents(content, _RAW_DATA_OF_WEIGHT))


def _by_name(messages: Iterable[memoryview], name_field: int) -> dict[str, memoryview]:
    return {_decode(name): message for message in messages for name in _contents(message, name_field)}


def _decode(content: memoryview) -> str:
    return bytes(content).decode()


def _encode_name(name: str) -> bytes:
    return encode_field(_NAME_OF_VALUE, name.encode())


def encode_field(number: int, content: bytes) -> bytes:
    """A field of a message whose content is text, bytes or another message."""
    return b"".join(_field(number, content))


def _field(number: int, content: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    return _encode_head(number, len(content)), content


def _encode_head(number: int, size: int) -> bytes:
    return encode_varint(number << 3 | _BYTES) + encode_varint(size)


def encode_varint(value: int) -> bytes:
    """A number in the encoding of protocol buffers: seven bits a byte, the low ones first."""
    head = b""
    while value > 0x7F:
        head += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return head + bytes((value,))


def _contents(message: memoryview, field_number: int) -> Iterator[memoryview]:
    return (content for number, content in _read_fields(message) if number == field_number)


def _read_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The numbers and contents of the fields that are bytes."""
    return ((number, message[content:end]) for number, _, content, end in _scan(message) if content != end)


def _scan(message: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Each field: its number, where it starts, where its bytes start if it has any, and where it ends."""
    offset = 0
    while offset < len(message):
        start = offset
        key, offset = _read_varint(message, offset)
        kind = key & 7
        size = _FIXED_SIZES.get(kind, 0)
        if kind in (_VARINT, _BYTES):
            value, offset = _read_varint(message, offset)
            size = value if kind == _BYTES else 0
        content = offset if kind == _BYTES else offset + size
        offset += size
        # Protocol Buffers, Encoding: wire types 3 and 4 are of groups, which are deprecated and in no model.
        if offset > len(message) or kind not in (_VARINT, _BYTES, *_FIXED_SIZES):
            raise ValueError
        yield key >> 3, start, content, offset


def _read_varint(message: memoryview, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, offset
