"""Parts of a model that compute what the whole does."""

import numpy as np
import pytest

from antiphon.speech import onnx
from antiphon.speech.onnx_graph import OnnxGraph, extra_output, find_constants
from support.speech.onnx_models import FLOAT, attribute, model, node, number, part, value, voice, weight

IDS = np.array([[3, 1, 4, 1, 5]], np.int64)


def inputs(session):
    return {each.name for each in session.get_inputs()}


def test_the_parts_of_a_model_one_after_the_other_are_the_model():
    whole = voice()
    graph = OnnxGraph(whole)
    first, last = onnx.load(graph.extract(("latents", "durations"))), onnx.load(graph.extract(("output",), ("latents",)))
    assert (inputs(first), inputs(last)) == ({"input"}, {"latents"})
    latents, durations = first.run(None, {"input": IDS})
    assert np.array_equal(durations, IDS)
    assert np.allclose(last.run(None, {"latents": latents}), onnx.load(whole).run(None, {"input": IDS}))


def test_a_part_has_only_the_weights_that_it_needs():
    graph = OnnxGraph(
        model(value(11, "a", FLOAT), weight("big", [1.0] * 1000, [1000]), node("Add", ["a", "big"], "b"), node("Neg", ["b"], "c"))
    )
    assert len(graph.extract(("c",), ("b",))) < 200
    assert len(graph.extract(("c",))) > 4000


def test_an_output_is_added_without_reading_the_rest():
    session = onnx.load(voice() + extra_output("durations"))
    assert [each.name for each in session.get_outputs()] == ["output", "durations"]


def test_what_a_graph_within_a_node_reads_is_kept():
    branch = part(2, "branch") + node("Add", ["a", "w"], "inner") + value(12, "inner", FLOAT)
    choice = node("If", ["flag"], "c", attribute("then_branch", branch), attribute("else_branch", branch))
    whole = model(value(11, "flag", 9), value(11, "a", FLOAT), weight("w", [2.0], [1]), choice, node("Neg", ["c"], "unused"))
    session = onnx.load(OnnxGraph(whole).extract(("c",)))
    assert session.run(None, {"flag": np.array(True), "a": np.array([1.0], np.float32)}) == [np.array([3.0], np.float32)]


def test_nodes_are_found_only_where_there_is_one_of_them():
    graph = OnnxGraph(voice())
    assert (graph.only_output("Ceil"), graph.only_output("Reshape"), graph.only_output("Loop")) == ("durations", None, None)
    assert (graph.input_weighted_by("dec.conv_pre.weight"), graph.input_weighted_by("no.weight")) == ("latents", None)
    assert graph.outputs == ("output",)


def test_constants_are_found_in_graphs_within_nodes():
    def constant(name, numbers):
        return node("Constant", [], name, part(5, part(1, "value") + part(5, part(9, numbers)) + number(20, 4)))

    branch = part(2, "branch") + constant("inner", b"abcd")
    whole = model(constant("outer", b"efgh"), node("If", ["flag"], "c", attribute("then_branch", branch)))
    assert {name: bytes(numbers) for name, numbers in find_constants(whole).items()} == {"outer": b"efgh", "inner": b"abcd"}


@pytest.mark.parametrize("content", [b"", b"no model at all", voice()[:-40]])
def test_what_is_no_model_is_refused(content):
    with pytest.raises(ValueError, match="not an ONNX model"):
        OnnxGraph(content)
