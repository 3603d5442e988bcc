"""Base64 is read and written as msgspec does it: the same bytes, the same errors."""

import base64

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from antiphon.wire.codec.base64_strings import decode_base64_string, encode_base64_string

ALPHABET = b'ABCZabz0189+/=-_ \n\r\t\\u"\x00\x80\xff'
NEARLY_BASE64 = st.lists(st.sampled_from(ALPHABET), max_size=14).map(bytes)


def outcome(read, json_string):
    """What is read, or which error it is."""
    try:
        return read(json_string)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return type(error), str(error)


def same(text):
    json_string = b'"%b"' % text
    assert outcome(decode_base64_string, json_string) == outcome(msgspec.json.Decoder(bytes).decode, json_string)


@given(NEARLY_BASE64)
@example(b"AB==")  # with bits that the padding leaves over
@example(b"AAAA====")
@example(b"A=AA")
@example(b"\\/\\u0041==")
def test_whatever_is_between_the_quotes_is_read_as_msgspec_reads_it(text):
    same(text)


@given(content=st.binary(max_size=300), at=st.integers(0, 400), other=NEARLY_BASE64)
def test_so_is_base64_with_something_else_in_it(content, at, other):
    text = base64.b64encode(content)
    same(text)
    same(text[:at] + other + text[at + len(other) :])


@given(st.binary(max_size=300))
@example(bytes(range(256)) * 40)
def test_content_is_written_as_msgspec_writes_it(content):
    assert msgspec.json.encode({"audio": encode_base64_string(content)}) == msgspec.json.encode({"audio": content})


@pytest.mark.parametrize("size_bytes", range(100))
def test_every_length_is_read_back(size_bytes):
    content = bytes(range(size_bytes))
    assert decode_base64_string(memoryview(bytes(encode_base64_string(content)))) == content
