"""What a client of full duplex may ask for that an engine of turns can honour."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from msgspec import Struct

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import Sampling


class DuplexOptions(Struct, frozen=True, kw_only=True):
    """
    What is honoured.

    Attributes:
        is_silent: whether it is to write only.
        listens_first: pieces of sound at the beginning to which nothing is said.
        unknown: names of what was asked and is not honoured.
    """

    sampling: Sampling = Sampling()
    is_text_only: bool = False
    force_listen_count: int = 0
    unknown: tuple[str, ...] = ()


def _number_between(minimum: float, maximum: float) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and minimum <= value <= maximum

    return fits


def _integer_between(minimum: int, maximum: int) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum

    return fits


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_VALIDATORS: Mapping[str, Callable[[Any], bool]] = {
    "temperature": _number_between(0, 2),
    "top_p": _number_between(0, 1),
    "max_tokens": _integer_between(1, 1 << 20),
    "top_k": _integer_between(0, 1 << 20),
    "force_listen_count": _integer_between(0, 3600),
    "generate_audio": _is_flag,
    "tts_enabled": _is_flag,
}
"""
What is known, and what it may be. Not among them is `length_penalty`: in full-duplex models it weighs going on against listening, and
servers of text take it for something else, or refuse it.
"""


def parse_options(options: Mapping[str, Any], capabilities: Capabilities) -> DuplexOptions:
    """What of `options` an engine with those abilities can honour; a value that can't be is left out as an unknown name is."""
    taken = {
        name: value
        for name, value in options.items()
        if name in _VALIDATORS and _VALIDATORS[name](value) and _is_supported(name, capabilities)
    }
    plain = {name: taken[name] for name in ("temperature", "top_p", "max_tokens") if name in taken}
    return DuplexOptions(
        sampling=Sampling(**plain, extra={"top_k": taken["top_k"]} if "top_k" in taken else {}),
        is_text_only=not (taken.get("generate_audio", True) and taken.get("tts_enabled", True)),
        force_listen_count=taken.get("force_listen_count", 0),
        unknown=tuple(sorted(name for name in options if name not in taken)),
    )


def _is_supported(name: str, capabilities: Capabilities) -> bool:
    return name not in ("temperature", "top_p") or bool(getattr(capabilities, name))
