"""
Which of several upstreams gets a request: a pure function of what is known of each.

Requests of one conversation go to the same upstream, whose cache has its beginning, unless that one has more than its
part of the load: bounded-load rendezvous hashing. Every process comes to the same order of the upstreams without
talking to the others, and when one goes away only its own conversations move.

Sources: D. Thaler and C. Ravishankar, "Using name-based mappings to increase hit rates", 1998; V. Mirrokni, M. Thorup
and M. Zadimoghaddam, "Consistent hashing with bounded loads", https://arxiv.org/abs/1608.01350.
"""

import math
from collections.abc import Callable, Sequence
from hashlib import blake2b

from msgspec import Struct

MANY = 8
"""With more upstreams than this, the least busy of two random ones is taken: all processes would choose the same."""

_HASH_RANGE = float(1 << 64)


class Candidate(Struct, frozen=True):
    """
    An upstream that could take the request.

    Attributes:
        weight: its share of the load, in proportion to the others'.
        outstanding: how many requests it has.
        floor: up to so many it takes its conversations in any case.
    """

    name: str
    weight: float = 1.0
    outstanding: int = 0
    floor: int = 4


class UpstreamChoice(Struct, frozen=True):
    """The upstream that was chosen; `is_affine` if it is the first for the request's key."""

    name: str
    is_affine: bool = False


def rank(key: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates in the order in which requests with `key` prefer them."""
    return sorted(candidates, key=lambda each: _score(key, each), reverse=True)


def load_bound(candidate: Candidate, candidates: Sequence[Candidate], factor: float) -> int:
    """
    How many requests a candidate may have for affinity to give it one.

    Args:
        factor: how much more than its part of the load it may have; more than 1.
    """
    total = sum(each.outstanding for each in candidates) + 1
    share = candidate.weight / sum(each.weight for each in candidates)
    return max(candidate.floor, math.ceil(factor * total * share))


def choose(
    key: str | None, candidates: Sequence[Candidate], factor: float, pick_two: Callable[[int], tuple[int, int]]
) -> UpstreamChoice | None:
    """
    The upstream for a request; None where there is none.

    Args:
        key: equal for requests that should meet; None where nothing says which those are.
        factor: see `load_bound`.
        pick_two: two different random numbers below its argument.
    """
    if not candidates:
        return None
    if key is not None:
        for place, candidate in enumerate(rank(key, candidates)):
            if candidate.outstanding < load_bound(candidate, candidates, factor):
                return UpstreamChoice(candidate.name, is_affine=place == 0)
    if len(candidates) > MANY:
        candidates = [candidates[place] for place in pick_two(len(candidates))]
    least_busy = min(candidates, key=lambda each: ((each.outstanding + 1) / each.weight, -each.weight, each.name))
    return UpstreamChoice(least_busy.name)


def _score(key: str, candidate: Candidate) -> float:
    digest = blake2b(f"{key}\0{candidate.name}".encode(errors="surrogatepass"), digest_size=8).digest()
    uniform = (int.from_bytes(digest, "big") + 1) / (_HASH_RANGE + 2)  # neither 0 nor 1
    # Weighted rendezvous hashing: each wins its share of the keys, and a changed weight moves only as many keys as it must.
    return -candidate.weight / math.log(uniform)
