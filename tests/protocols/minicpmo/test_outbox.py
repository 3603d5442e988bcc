"""What a MiniCPM-o session has counted is the same whenever it is asked for."""

from hypothesis import given, strategies as st
from msgspec import UNSET

from antiphon.engine_api.events import Usage
from antiphon.protocols.minicpmo.outbox import TokenTotals

COUNTS = st.integers(0, 9)
USAGES = st.builds(Usage, id=st.sampled_from("abc"), input_tokens=COUNTS, output_tokens=COUNTS, output_audio_tokens=COUNTS)
STEPS = st.lists(st.one_of(USAGES, st.sampled_from("abc")))


def perform(totals, step):
    if isinstance(step, Usage):
        totals.update(step)
    else:
        totals.finish(step)


@given(STEPS)
def test_the_total_is_that_of_one_who_asks_only_at_the_end(steps):
    asked_always = TokenTotals()
    for count, step in enumerate(steps, 1):
        asked_once = TokenTotals()
        for each in steps[:count]:
            perform(asked_once, each)
        perform(asked_always, step)
        assert asked_always.wire_usage() == asked_once.wire_usage()


def test_the_total_is_one_object_until_it_grows():
    totals = TokenTotals()
    assert totals.wire_usage() is UNSET
    totals.update(Usage(id="a", input_tokens=1, output_tokens=2))
    first = totals.wire_usage()
    assert totals.wire_usage() is first
    totals.update(Usage(id="a", input_tokens=1, output_tokens=3))
    assert (totals.wire_usage() is first, totals.wire_usage().total_tokens) == (False, 4)
