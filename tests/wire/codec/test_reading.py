"""The reader: depth, invalid JSON, queries."""

from typing import Annotated, Literal

import pytest
from msgspec import UNSET, Meta

from antiphon.errors import ClientError
from antiphon.wire.codec.reading import Reader, read_query
from antiphon.wire.codec.types import Opt, Wire
from antiphon.wire.responses.endpoints import RetrieveQuery
from antiphon.wire.responses.parts import InputText, OutputText, TopLogprob
from antiphon.wire.responses.request import CreateRequest, Includable, decode_request


class ListQuery(Wire, kw_only=True):
    """A query with values of every kind."""

    after: Opt[str] = UNSET
    include: Opt[list[Includable]] = UNSET
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"text":"\xff"}',
        b"[" * 100_000,
        b'{"text":"\\ud800"}',
        b'{"type":"input_text","text":"a","a":1e999}',
        b'{"type":"input_text","text":"a","a":"\xff"}',
        b"nul",
        b"\x00",
    ],
)
def test_what_is_no_json_is_refused_as_such(body):
    with pytest.raises(ClientError) as caught:
        Reader(InputText).read(body)
    assert caught.value.body()["error"]["type"] == "invalid_request_error"
    assert caught.value.code in (None, "invalid_type")


def test_the_parser_says_what_is_wrong_with_json():
    with pytest.raises(
        ClientError, match=r"^We could not parse the JSON body of your request\. .* was not valid JSON: .*trailing comma.*\.\)$"
    ):
        Reader(InputText).read(b'{"text":1,}')


def test_a_body_of_the_wrong_kind_is_named():
    with pytest.raises(ClientError, match=r"^Invalid type: expected an object, but got an array instead\.$"):
        Reader(InputText).read(b" [] ")


@pytest.mark.parametrize(("field", "members"), [("include", "strings"), ("tools", "objects")])
def test_what_should_be_an_array_is_told_of_what(field, members):
    with pytest.raises(ClientError, match=f"'{field}': expected an array of {members}, but got a string instead"):
        decode_request(b'{"input": "x", "%b": "x"}' % field.encode())


def test_unknown_fields_are_kept_with_their_digits():
    part = Reader(InputText).read(b'{"type":"input_text", "text":"a", "weight": 1.50, "deep": {"x":\n[1]}}')
    assert part.extra == {"weight": 1.5, "deep": {"x": [1]}}


def test_null_stands_for_a_default():
    assert Reader(OutputText).read(b'{"type":"output_text","text":"a","annotations":null}') == OutputText(text="a", annotations=[])


def test_numbers_of_either_kind_are_decimals():
    assert Reader(TopLogprob).read(b'{"logprob":-1,"x":1}').logprob == -1.0


def test_a_whole_number_is_an_integer_however_it_is_written():
    read = Reader(CreateRequest).read
    assert read(b'{"max_output_tokens":16.0}').max_output_tokens == read(b'{"max_output_tokens":1.6e1}').max_output_tokens == 16
    with pytest.raises(ClientError, match="got a decimal number"):
        read(b'{"model":1.0}')


def test_a_query_is_read_as_its_type_says():
    pairs = [
        ("limit", "5"),
        ("include[]", "reasoning.encrypted_content"),
        ("include", "message.output_text.logprobs"),
        ("after", "12"),
        ("beta", "true"),
    ]
    assert read_query(ListQuery, pairs) == ListQuery(
        limit=5, include=["reasoning.encrypted_content", "message.output_text.logprobs"], after="12"
    )
    assert read_query(RetrieveQuery, [("stream", "true"), ("starting_after", "7")]) == RetrieveQuery(stream=True, starting_after=7)
    assert read_query(ListQuery, []) == ListQuery(limit=20, order="desc")


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("limit", "101"), "Invalid 'limit': integer above maximum value. Expected a value <= 100, but got 101 instead."),
        (("limit", "0"), "Invalid 'limit': integer below minimum value. Expected a value >= 1, but got 0 instead."),
        (("limit", "ten"), "Invalid type for 'limit': expected an integer, but got a string instead."),
        (("limit", "01"), "Invalid type for 'limit': expected an integer, but got a string instead."),
        (("order", "up"), "Invalid value: 'up'. Supported values are: 'asc' and 'desc'."),
    ],
)
def test_a_wrong_query_is_named(pair, message):
    with pytest.raises(ClientError) as caught:
        read_query(ListQuery, [pair])
    assert caught.value.message == message
    assert caught.value.param == pair[0]
