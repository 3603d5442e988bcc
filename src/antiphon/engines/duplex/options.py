"""Which engines can be given full duplex, and which options of a full-duplex client they can honour."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from msgspec import Struct

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import Sampling


def can_adapt(capabilities: Capabilities) -> bool:
    """Whether `DuplexAdapter` can give full duplex to an engine: it listens, detects turns, and has none of its own."""
    return capabilities.listens and bool(capabilities.turn_detection) and not capabilities.full_duplex


class DuplexOptions(Struct, frozen=True, kw_only=True):
    """
    The options that are honoured.

    Attributes:
        is_text_only: whether to answer in text only.
        force_listen_count: how many chunks of input at the beginning get no answer.
        unknown: names of the options that are not honoured.
    """

    sampling: Sampling = Sampling()
    is_text_only: bool = False
    force_listen_count: int = 0
    unknown: tuple[str, ...] = ()


def _number_between(minimum: float, maximum: float) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and minimum <= value <= maximum

    return fits


def _integer_between(minimum: int, maximum: int) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum

    return fits


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_VALIDATORS: Mapping[str, Callable[[object], bool]] = {
    "temperature": _number_between(0, 2),
    "top_p": _number_between(0, 1),
    "max_tokens": _integer_between(1, 1 << 20),
    "top_k": _integer_between(0, 1 << 20),
    "force_listen_count": _integer_between(0, 3600),
    "generate_audio": _is_flag,
    "tts_enabled": _is_flag,
}
"""
The known options and their valid values; the ranges of `temperature` and `top_p` are those of the Responses reference.
`length_penalty` is not among them: in full-duplex models it weighs going on against listening, and text servers use it
for something else, or refuse it.
"""


def parse_options(options: Mapping[str, Any], capabilities: Capabilities) -> DuplexOptions:
    """The options that an engine with these capabilities can honour; an invalid value counts as unknown."""
    valid_options = {
        name: value
        for name, value in options.items()
        if name in _VALIDATORS and _VALIDATORS[name](value) and _is_supported(name, capabilities)
    }
    plain = {name: valid_options[name] for name in ("temperature", "top_p", "max_tokens") if name in valid_options}
    return DuplexOptions(
        sampling=Sampling(**plain, extra={"top_k": valid_options["top_k"]} if "top_k" in valid_options else {}),
        is_text_only=not (valid_options.get("generate_audio", True) and valid_options.get("tts_enabled", True)),
        force_listen_count=valid_options.get("force_listen_count", 0),
        unknown=tuple(sorted(name for name in options if name not in valid_options)),
    )


def _is_supported(name: str, capabilities: Capabilities) -> bool:
    return name not in ("temperature", "top_p") or bool(getattr(capabilities, name))
