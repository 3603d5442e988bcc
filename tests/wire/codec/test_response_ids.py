"""One id in two forms."""

import re
import uuid

from hypothesis import given, strategies as st

from antiphon.wire.codec.response_ids import created_at_ms, read_response_id, response_id, uuid_of


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_each_form_leads_to_the_other_and_to_the_time(at_ms, random_bits):
    made = response_id(at_ms, random_bits)
    assert re.fullmatch("resp_[0-9a-f]{48}", made)
    read = uuid.UUID(uuid_of(made))
    assert (read.version, read.variant) == (7, uuid.RFC_4122)
    assert read_response_id(str(read)) == read_response_id(str(read).upper()) == read_response_id(made) == made
    assert created_at_ms(made, 0) == at_ms


@given(st.one_of(st.text(max_size=60), st.from_regex("resp_[0-9a-f]{48}", fullmatch=True)))
def test_another_id_stays_as_it_is(text):
    assert uuid_of(text) == text
    assert created_at_ms(text, 1.5) == 1500
