"""Prompts with the values of their variables, without a server."""

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.protocols.responses.prompts import MAX_FILLED_BYTES, fill_messages, fill_request, variable_names
from antiphon.wire.responses.parts import InputImage
from antiphon.wire.responses.prompts import PromptTemplate, decode_template
from antiphon.wire.responses.request import CreateRequest, Prompt, ReasoningOptions

NAMES = ("a", "b_2", "C-c")
# Of what placeholders are made, so that values and texts look like them.
WORDS = st.text(alphabet=st.sampled_from("{} abC_-2\n\\é"), max_size=12)
TEXTS = WORDS.filter(lambda text: "{{" not in text and not text.endswith("{"))


def contents(template, **variables):
    return [message.content for message in fill_messages(template, variables)[0]]


@given(st.lists(st.tuples(TEXTS, st.sampled_from(NAMES)), max_size=6), TEXTS, st.tuples(WORDS, WORDS, WORDS))
def test_every_placeholder_is_replaced_once_and_nothing_else(pieces, end, words):
    values = dict(zip(NAMES, words, strict=True))
    text = "x" + "".join(f"{before}{{{{{name}}}}}" for before, name in pieces) + end
    template = PromptTemplate(instructions=text, variables=dict.fromkeys(NAMES, "unused"))
    (parts,) = contents(template, **values)
    assert [part.text for part in parts] == ["x" + "".join(f"{before}{values[name]}" for before, name in pieces) + end]


@given(st.lists(st.sampled_from(["text ", "{{a}}", "{{b_2}}"]), min_size=1, max_size=8), WORDS)
def test_an_image_cuts_the_text_where_its_variable_stands(pieces, word):
    image = InputImage(image_url="data:,")
    template = PromptTemplate(instructions="".join(pieces), variables={"a": "", "b_2": ""})
    (parts,) = contents(template, a=image, b_2=word)
    texts = ["".join(run).replace("{{b_2}}", word) for run in split(pieces, "{{a}}")]
    expected = [part for text in texts for part in (text, image) if part][:-1] or [""]
    assert [part if part is image else part.text for part in parts] == expected


def split(pieces, cut):
    """The runs of pieces between those that are `cut`."""
    runs = [[]]
    for piece in pieces:
        if piece == cut:
            runs.append([])
        else:
            runs[-1].append(piece)
    return runs


def test_variables_are_listed_in_the_order_in_which_they_are_used():
    template = decode_template(
        b'{"instructions":"{{b}} {{ a }}{{1}}","variables":{"d":"","a":""},'
        b'"messages":[{"role":"assistant","content":[{"type":"output_text","text":"{{c}}","annotations":[]}]},'
        b'{"role":"user","content":"{{b}}"}]}'
    )
    assert variable_names(template) == ["b", "a", "c", "d"]


def test_what_would_be_too_large_is_refused_before_it_is_made():
    template = PromptTemplate(instructions="{{a}}" * 200_000)
    with pytest.raises(ClientError, match="32 MiB"):
        fill_messages(template, {"a": "x" * (MAX_FILLED_BYTES // 200_000)})
    with pytest.raises(ClientError, match="32 MiB"):
        fill_messages(template, {"a": InputImage(image_url="https://example.com/" + "x" * 200)})


def test_the_requests_name_of_an_option_goes_before_the_prompts_other_name():
    template = PromptTemplate(instructions="x", reasoning=ReasoningOptions(summary="auto", effort="low"))
    request = CreateRequest(prompt=Prompt(id="pmpt_a"), reasoning=ReasoningOptions(generate_summary="detailed"))
    reasoning = fill_request(request, template, "1").request.reasoning
    assert reasoning == ReasoningOptions(generate_summary="detailed", effort="low")
