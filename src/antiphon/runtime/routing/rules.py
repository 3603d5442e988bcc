"""The rules of a route: what each condition asks, and what it sees in a request."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from antiphon.config.routing import RouteRule, compile_pattern, parse_hours
from antiphon.runtime.routing.features import RouteFacts


class Observation(NamedTuple):
    """
    One condition of a rule, held against a request.

    Attributes:
        key: of the condition, as configured.
        expected: what it asks for.
        seen: what the request has.
        reason: why the rule fits, if it does; tells clients nothing of the configuration that is none of theirs.
    """

    key: str
    expected: str
    seen: str
    holds: bool
    reason: str


Condition = Callable[[RouteFacts], Observation]


class CompiledRule:
    """
    A rule, ready to be applied.

    Attributes:
        number: its place in the list, from 1.
    """

    def __init__(self, number: int, rule: RouteRule) -> None:
        self.number = number
        self.rule = rule
        self._conditions = tuple(_conditions(rule))

    def observe(self, facts: RouteFacts) -> Iterator[Observation]:
        """Every condition held against the request, the cheap ones first."""
        return (condition(facts) for condition in self._conditions)

    def reason_to_fit(self, facts: RouteFacts) -> str | None:
        """Why the rule fits; None where it does not."""
        reasons: list[str] = []
        for observation in self.observe(facts):
            if not observation.holds:
                return None
            reasons.append(observation.reason)
        return "; ".join(reasons) or "The rule has no conditions"


def _conditions(rule: RouteRule) -> Iterator[Condition]:
    when = rule.when
    if when.min_input_tokens is not None:
        yield _at_least(when.min_input_tokens)
    if when.max_input_tokens is not None:
        yield _at_most(when.max_input_tokens)
    for key, expected in (("tools", when.has_tools), ("images", when.has_images), ("audio", when.has_audio)):
        if expected is not None:
            yield _has(key, expected)
    if when.key:
        yield _from_key(when.key)
    if when.hours:
        yield _within(when.hours)
    if when.language:
        yield _in_language(when.language)
    if when.pattern is not None:
        yield _matches(when.pattern)


def _at_least(minimum: int) -> Condition:
    def check(facts: RouteFacts) -> Observation:
        tokens = facts.features.input_tokens
        return Observation("min_input_tokens", str(minimum), str(tokens), tokens >= minimum, _length_reason(">", minimum, tokens))

    return check


def _at_most(maximum: int) -> Condition:
    def check(facts: RouteFacts) -> Observation:
        tokens = facts.features.input_tokens
        return Observation("max_input_tokens", str(maximum), str(tokens), tokens <= maximum, _length_reason("<", maximum, tokens))

    return check


def _length_reason(relation: str, limit: int, tokens: int) -> str:
    """As EU GPT's page has it: "Input length > 500 tokens"."""
    return f"Input length {'=' if tokens == limit else relation} {limit} tokens"


def _has(what: str, expected: bool) -> Condition:
    def check(facts: RouteFacts) -> Observation:
        features = facts.features
        has = {
            "tools": features.has_tools,
            "images": features.has_images,
            "audio": features.has_audio or features.is_spoken or features.is_live,
        }[what]
        reason = f"Has {what}" if expected else f"Has no {what}"
        return Observation(f"has_{what}", _yes_no(expected), _yes_no(has), has is expected, reason)

    return check


def _from_key(keys: tuple[str, ...]) -> Condition:
    def check(facts: RouteFacts) -> Observation:
        caller = facts.caller
        holds = (bool(caller.key_id) and caller.key_id in keys) or (bool(caller.key_name) and caller.key_name in keys)
        # The reason names no key: clients see it, and the rule is the operator's.
        return Observation("key", ", ".join(keys), caller.key_name or caller.key_id or "none", holds, "The API key has a rule")

    return check


def _within(hours: tuple[str, ...]) -> Condition:
    ranges = tuple(parse_hours(text) for text in hours)

    def check(facts: RouteFacts) -> Observation:
        at = facts.now.time()
        holds = any(part.contains(at) for part in ranges)
        expected = ", ".join(hours)
        return Observation(
            "hours", expected, f"{facts.now:%H:%M %Z}".strip(), holds, f"Time of day is within {expected} {facts.now:%Z}".strip()
        )

    return check


def _in_language(languages: tuple[str, ...]) -> Condition:
    def check(facts: RouteFacts) -> Observation:
        language = facts.language
        return Observation("language", ", ".join(languages), language or "unclear", language in languages, f"Language is {language}")

    return check


def _matches(pattern: str) -> Condition:
    search = compile_pattern(pattern)

    def check(facts: RouteFacts) -> Observation:
        text = facts.features.text
        # A lone surrogate, which JSON allows, is no text for the expression.
        holds = bool(text) and search.isinstance_python(text.encode("utf-8", "replace").decode())
        return Observation("pattern", pattern, "found" if holds else "not found", holds, "The text matches a pattern")

    return check


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"
