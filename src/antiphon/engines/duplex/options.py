"""What a client of full duplex may ask for that an engine of turns can honour."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from msgspec import Struct

from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.options import Sampling


class Wishes(Struct, frozen=True, kw_only=True):
    """
    What is honoured.

    Attributes:
        is_silent: whether it is to write only.
        listens_first: pieces of sound at the beginning to which nothing is said.
        unknown: names of what was asked and is not honoured.
    """

    sampling: Sampling = Sampling()
    is_silent: bool = False
    listens_first: int = 0
    unknown: tuple[str, ...] = ()


def _between(least: float, most: float) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and least <= value <= most

    return fits


def _count(least: int, most: int) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return fits


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "temperature": _between(0, 2),
    "top_p": _between(0, 1),
    "max_tokens": _count(1, 1 << 20),
    "top_k": _count(0, 1 << 20),
    "force_listen_count": _count(0, 3600),
    "generate_audio": _is_flag,
    "tts_enabled": _is_flag,
}
"""
What is known, and what it may be. Not among them is `length_penalty`: in full-duplex models it weighs going on against listening, and
servers of text take it for something else, or refuse it.
"""


def wishes(options: Mapping[str, Any], abilities: Abilities) -> Wishes:
    """What of `options` an engine with those abilities can honour; a value that can't be is left out as an unknown name is."""
    taken = {name: value for name, value in options.items() if name in _FITS and _FITS[name](value) and _can(name, abilities)}
    plain = {name: taken[name] for name in ("temperature", "top_p", "max_tokens") if name in taken}
    return Wishes(
        sampling=Sampling(**plain, extra={"top_k": taken["top_k"]} if "top_k" in taken else {}),
        is_silent=not (taken.get("generate_audio", True) and taken.get("tts_enabled", True)),
        listens_first=taken.get("force_listen_count", 0),
        unknown=tuple(sorted(name for name in options if name not in taken)),
    )


def _can(name: str, abilities: Abilities) -> bool:
    return name not in ("temperature", "top_p") or bool(getattr(abilities, name))
