"""
The settings of routing: names that clients use as a model's, behind which the server chooses one.

`docs/guide/routing.md` explains how a choice is made.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import time as DayTime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import SchemaError, SchemaValidator, core_schema

from antiphon.config.languages import LANGUAGES
from antiphon.errors import is_or_are, quote_list

EMBEDDING_MODEL = "all-minilm-l6-v2"
"""The model of the catalogue that compares requests with examples."""

MAX_ROUTES = 100
MAX_RULES = 1000
MAX_EXAMPLE_TEXTS = 10_000
MAX_PATTERN_CHARACTERS = 1000

_CATEGORY = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_HOURS = re.compile(r"([01]?\d|2[0-4])(?::([0-5]\d))?\s*-\s*([01]?\d|2[0-4])(?::([0-5]\d))?")

Category = Annotated[str, Field(pattern=_CATEGORY)]


def _as_list(value: Any) -> Any:
    """A single name as a list of one."""
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class HourRange(NamedTuple):
    """A part of the day, in minutes from midnight. One that ends before it begins includes midnight."""

    start_min: int
    end_min: int

    def contains(self, at: DayTime) -> bool:
        """Whether a time of the day is in it; its end is not."""
        minute = 60 * at.hour + at.minute
        if self.start_min < self.end_min:
            return self.start_min <= minute < self.end_min
        return minute >= self.start_min or minute < self.end_min


def parse_hours(text: str) -> HourRange:
    """
    A part of the day, such as `9-17` or `22:30-06:00`.

    Raises:
        ValueError: the text is no such part of the day.
    """
    match = _HOURS.fullmatch(text.strip())
    if match is not None:
        first_hour, first_minute, last_hour, last_minute = (int(group or 0) for group in match.groups())
        start_min, end_min = 60 * first_hour + first_minute, 60 * last_hour + last_minute
        # 24:00 is midnight at the end of a day, and can't begin a range.
        if start_min < 1440 and end_min <= 1440 and start_min != end_min:
            return HourRange(start_min, end_min)
    raise ValueError(f"expected hours such as '9-17' or '22:30-06:00'; got '{text}'")


def compile_pattern(pattern: str) -> SchemaValidator:
    """
    A search for a regular expression: `isinstance_python` tells whether a text has it.

    Its time is linear in the text's length whatever the expression, as it can't look around or back, but it grows with
    the expression too. Source: https://docs.rs/regex, "Untrusted input".

    Raises:
        ValueError: it is not valid, or takes so long that others would wait for it.
    """
    try:
        search = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[-1])
        raise ValueError(f"'{pattern}' is not a valid regular expression: {reason}") from None
    own_words = " ".join(re.findall(r"\w+", pattern))  # A text without the pattern's words is often rejected at once.
    if any(_search_s(search, text) > _MAX_PROBE_S for text in (*_PROBES, f"{own_words} " * (512 // (len(own_words) + 1)))):
        raise ValueError(f"'{pattern}' takes too long to search; shorten its repetitions, or write `*` and `+` for those in braces")
    return search


_PROBES = ("x " * 256, "a" * 512, "Ab1-é. " * 73)
_MAX_PROBE_S = 0.002  # An eighth of a second for the longest text; ordinary expressions take a hundredth of it.


def _search_s(search: SchemaValidator, text: str) -> float:
    """How long a search takes, at best: the first one prepares it, and the machine may have other work."""
    durations_s = []
    for _ in range(4):
        began_at = time.perf_counter()
        search.isinstance_python(text)
        durations_s.append(time.perf_counter() - began_at)
    return min(durations_s)


class RouteCondition(BaseModel, frozen=True, extra="forbid"):
    """What a request must be for a rule; all that is set must hold."""

    min_input_tokens: int | None = Field(default=None, ge=0, description="The least tokens of input, as estimated.")
    max_input_tokens: int | None = Field(default=None, ge=0, description="The most tokens of input, as estimated.")
    has_tools: bool | None = Field(default=None, description="Whether the request has tools.")
    has_images: bool | None = Field(default=None, description="Whether the conversation has images.")
    has_audio: bool | None = Field(default=None, description="Whether the conversation has audio, or the response is to be spoken.")
    language: Names = Field(default=(), description="The language of the last user message, or several, such as `de`.")
    pattern: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_PATTERN_CHARACTERS,
        description="A regular expression that the last user message has a match for.",
    )
    key: Names = Field(default=(), description="The id or the name of the request's API key, or several.")
    hours: Names = Field(default=(), description="A time of the day, or several, such as `22:00-06:00`, in the server's time zone.")

    @field_validator("language")
    @classmethod
    def _validate_languages(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [language for language in languages if language not in LANGUAGES]:
            raise ValueError(f"the language {quote_list(unknown)} is not recognized; there are {quote_list(LANGUAGES)}")
        return languages

    @field_validator("pattern")
    @classmethod
    def _validate_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            compile_pattern(pattern)
        return pattern

    @field_validator("hours")
    @classmethod
    def _validate_hours(cls, hours: tuple[str, ...]) -> tuple[str, ...]:
        for text in hours:
            parse_hours(text)
        return hours

    @field_validator("max_input_tokens")
    @classmethod
    def _validate_token_range(cls, maximum: int | None, info: ValidationInfo) -> int | None:
        minimum = info.data.get("min_input_tokens")
        if maximum is not None and minimum is not None and maximum < minimum:
            raise ValueError(f"is below `min_input_tokens`, {minimum}, so that no request fits")
        return maximum


class RouteRule(BaseModel, frozen=True, extra="forbid"):
    """A model for the requests that meet a condition."""

    model: str = Field(min_length=1, description="The model that answers.")
    category: Category = Field(default="general", description="What the request is called that this rule fits.")
    when: RouteCondition = Field(default=RouteCondition(), description="What the request must be; unset: any.")


class RouteExamples(BaseModel, frozen=True, extra="forbid"):
    """Example texts of a category; a request that resembles them goes to the category's model."""

    category: Category = Field(description="What requests like these are called.")
    model: str | None = Field(
        default=None, min_length=1, description="The model that answers; unset: that of the rule or the examples with this category."
    )
    texts: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1, description="What a user may write.")


class RouteEntry(BaseModel, frozen=True, extra="forbid"):
    """A name behind which the server chooses a model."""

    name: str = Field(default="auto", min_length=1, pattern=r"^[^*]+$", description="The name that clients use in `model`.")
    default: str = Field(min_length=1, description="The model where no rule fits, and no example is similar enough.")
    stick: Literal["conversation", "none"] = Field(
        default="conversation", description="`conversation`: further turns of a conversation go to the model of its first one."
    )
    threshold: float | None = Field(
        default=None, ge=0, le=1, description="How sure the classifier must be; unset: 0.15 for similarity, 0.3 for probability."
    )
    margin: float | None = Field(
        default=None, ge=0, le=1, description="How far the best category must be ahead of the second; unset: 0.02, or 0.05 for probability."
    )
    timeout_ms: float = Field(default=100, gt=0, le=10_000, description="How long a request waits for the classifier.")
    rules: tuple[RouteRule, ...] = Field(default=(), max_length=MAX_RULES, description="Rules in order; the first one that fits decides.")
    examples: tuple[RouteExamples, ...] = Field(default=(), description="Examples for the classifier, by category.")

    @field_validator("examples")
    @classmethod
    def _validate_examples(cls, examples: tuple[RouteExamples, ...]) -> tuple[RouteExamples, ...]:
        if (count := sum(len(entry.texts) for entry in examples)) > MAX_EXAMPLE_TEXTS:
            raise ValueError(f"expected {MAX_EXAMPLE_TEXTS} texts at most, got {count}")
        return examples

    @property
    def model_by_category(self) -> dict[str, str]:
        """The model of each category that has examples; a category without one is missing."""
        return {category: models[0][1] for category, models in self._models_by_category().items() if models}

    def _models_by_category(self) -> dict[str, list[tuple[str, str]]]:
        """For each category with examples, the settings that name a model for it, and the models; those of rules come last."""
        models: dict[str, list[tuple[str, str]]] = {entry.category: [] for entry in self.examples}
        for index, entry in enumerate(self.examples):
            if entry.model is not None:
                models[entry.category].append((f"examples[{index}]", entry.model))
        for index, rule in enumerate(self.rules):
            if rule.category in models:
                models[rule.category].append((f"rules[{index}]", rule.model))
        return models

    def _example_problems(self) -> Iterator[tuple[str, str]]:
        first: dict[str, str] = {}
        models = self._models_by_category()
        for index, entry in enumerate(self.examples):
            if not models[entry.category]:
                yield (
                    f"examples[{index}].category",
                    f"no model is named for '{entry.category}': set `model`, here or in a rule of this category",
                )
            if entry.model is not None and first.setdefault(entry.category, entry.model) != entry.model:
                yield f"examples[{index}].model", f"'{entry.category}' has examples with another model, '{first[entry.category]}'"

    def problems(self, models: Iterable[str]) -> Iterator[tuple[str, str]]:
        """
        The key of each setting that does not fit the others, and what is wrong with it.

        Args:
            models: the configured names.
        """
        names = tuple(models)
        if self.name in names:
            yield "name", f"there is a model named '{self.name}', too"
        places = [("default", self.default)]
        places += [(f"rules[{index}].model", rule.model) for index, rule in enumerate(self.rules)]
        places += [(f"examples[{index}].model", entry.model) for index, entry in enumerate(self.examples) if entry.model is not None]
        choice = f"; there {is_or_are(names)}" if names else ""
        for key, model in places:
            if not is_configured(model, names):
                yield key, f"there is no model '{model}'{choice}"
        yield from self._example_problems()


def is_configured(model: str, names: Sequence[str]) -> bool:
    """Whether a configured name, or one that ends in `*`, stands for the model."""
    return not model.endswith("*") and any(model == name or (name.endswith("*") and model.startswith(name[:-1])) for name in names)


def routing_problems(routes: Sequence[RouteEntry], models: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The key of each setting of the routing that does not fit the models, and what is wrong with it."""
    names = tuple(models)
    for index, entry in enumerate(routes):
        for key, problem in entry.problems(names):
            yield f"routing[{index}].{key}", problem
