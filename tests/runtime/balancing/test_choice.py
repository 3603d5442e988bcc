"""The choice of an upstream, held to what it promises whatever the load."""

import math
import random
from collections import Counter

from hypothesis import given, strategies as st

from antiphon.runtime.balancing.choice import Candidate, choose, load_bound, rank

FACTOR = 1.25

weights = st.sampled_from([0.5, 1.0, 2.0, 3.0])
candidates = st.lists(st.tuples(weights, st.integers(0, 40), st.integers(1, 8)), min_size=1, max_size=12).map(
    lambda rows: [Candidate(f"u{place}", weight, outstanding, floor) for place, (weight, outstanding, floor) in enumerate(rows)]
)
keys = st.one_of(st.none(), st.text(max_size=20))


def pick_two(count):
    return tuple(random.sample(range(count), 2))


@given(candidates, st.text(max_size=20))
def test_affinity_gives_nothing_to_an_upstream_at_its_bound(upstreams, key):
    choice = choose(key, upstreams, FACTOR, pick_two)
    chosen = next(each for each in upstreams if each.name == choice.name)
    has_room = [each for each in upstreams if each.outstanding < load_bound(each, upstreams, FACTOR)]
    assert not has_room or chosen in has_room


@given(st.lists(st.text(max_size=6), min_size=1, max_size=200), st.integers(2, 6))
def test_no_upstream_ever_has_more_than_its_bound(conversations, count):
    load = Counter()
    for key in conversations:
        upstreams = [Candidate(f"u{place}", 1.0, load[f"u{place}"], floor=1) for place in range(count)]
        name = choose(key, upstreams, FACTOR, pick_two).name
        load[name] += 1
        assert load[name] <= math.ceil(FACTOR * load.total() / count)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=50), st.integers(2, 9), st.integers(0, 8))
def test_when_one_goes_only_its_own_conversations_move(conversations, count, gone):
    upstreams = [Candidate(f"u{place}") for place in range(count)]
    rest = [each for each in upstreams if each.name != f"u{gone % count}"]
    for key in conversations:
        before, after = rank(key, upstreams)[0], rank(key, rest)[0]
        assert after == before or before not in rest


@given(candidates, keys)
def test_the_same_request_finds_the_same_upstream_in_every_process(upstreams, key):
    few = upstreams[:8]
    assert choose(key, few, FACTOR, pick_two) == choose(key, list(reversed(few)), FACTOR, pick_two)


def test_conversations_are_spread_by_weight():
    upstreams = [Candidate("small", 1.0), Candidate("large", 3.0)]
    first = Counter(rank(f"conversation {number}", upstreams)[0].name for number in range(4000))
    assert 2.7 < first["large"] / first["small"] < 3.3


def test_without_a_key_the_least_busy_by_weight_is_taken():
    upstreams = [Candidate("a", 1.0, 2), Candidate("b", 4.0, 5), Candidate("c", 1.0, 3)]
    assert choose(None, upstreams, FACTOR, pick_two).name == "b"
    assert choose(None, [], FACTOR, pick_two) is None


def test_among_many_the_less_busy_of_two_random_ones_is_taken():
    upstreams = [Candidate(f"u{place}", 1.0, place) for place in range(20)]
    assert choose(None, upstreams, FACTOR, lambda _count: (17, 5)).name == "u5"


def test_a_conversation_stays_while_there_is_room_and_goes_elsewhere_when_there_is_none():
    key = "a conversation"
    home = rank(key, [Candidate("a"), Candidate("b")])[0].name
    idle = [Candidate(name, 1.0, 3 if name == home else 0, floor=4) for name in ("a", "b")]
    assert choose(key, idle, FACTOR, pick_two).name == home
    busy = [Candidate(name, 1.0, 4 if name == home else 0, floor=4) for name in ("a", "b")]
    assert choose(key, busy, FACTOR, pick_two).name != home
