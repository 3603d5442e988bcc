"""The settings of rewrites: what is done to an answer's text once the model has written it."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from antiphon.config.languages import LANGUAGES
from antiphon.config.routing import is_configured
from antiphon.errors import did_you_mean, is_or_are

MAX_REWRITES = 32
MAX_RULES = 200

RewriteKind = Literal["language", "spelling", "rule", "model"]


def _check_languages(codes: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [code for code in codes if code not in LANGUAGES]:
        raise ValueError(f"expected codes of {', '.join(LANGUAGES)}; got {', '.join(repr(code) for code in unknown)}")
    return codes


class RewriteRule(BaseModel, frozen=True, extra="forbid"):
    """A regular expression, and what replaces its matches."""

    pattern: str = Field(min_length=1, max_length=2000, description="A regular expression, in Python's syntax.")
    replacement: str = Field(default="", max_length=2000, description="What takes its place; `\\1` is the first group.")
    ignore_case: bool = Field(default=False, description="Whether the pattern fits capitals and small letters alike.")

    @model_validator(mode="after")
    def _validate_pattern(self) -> "RewriteRule":
        try:
            # `sub` also parses the replacement, and finds a group that the pattern does not have.
            re.compile(self.pattern).sub(self.replacement, "")
        except (re.error, IndexError, OverflowError, RecursionError) as error:
            raise ValueError(f"{self.pattern!r} with {self.replacement!r} is no replacement: {error}") from None
        return self


class RewriteCondition(BaseModel, frozen=True, extra="forbid"):
    """Which answers a rewrite is for; each key narrows it."""

    min_chars: int = Field(default=0, ge=0, description="Answers with at least so many characters.")
    languages: tuple[str, ...] = Field(default=(), description="Answers in one of these languages, as codes.")
    keys: tuple[str, ...] = Field(default=(), description="Answers to requests with one of these API keys, by id.")

    _validate_languages = field_validator("languages")(_check_languages)


class RewriteEntry(BaseModel, frozen=True, extra="forbid"):
    """A pass over an answer's text."""

    name: str = Field(min_length=1, max_length=100, description="A name for it, in logs and metrics.")
    kind: RewriteKind = Field(description="What it does: `language`, `spelling`, `rule`, or `model` for an instruction of your own.")
    models: tuple[str, ...] = Field(
        default=(), description="The models, or routing names, whose answers it is for; `*` at the end fits any rest; empty for all."
    )
    model: str | None = Field(default=None, min_length=1, description="The model that rewrites; unset: the one that answered.")
    instruction: str | None = Field(default=None, min_length=1, max_length=20_000, description="For `model`: what to do with the text.")
    language: str | None = Field(default=None, description="For `language`: the code of the one to write; unset: the user's.")
    rules: Annotated[tuple[RewriteRule, ...], Field(max_length=MAX_RULES)] = Field(
        default=(), description="For `rule`: what to replace, in this order."
    )
    skip_code: bool = Field(default=True, description="For `rule`: whether code in Markdown stays as it is.")
    drafts: Literal["send", "hold"] = Field(
        default="send", description="What streams get of the text before it is rewritten: all of it at once, or nothing."
    )
    timeout_s: float | None = Field(
        default=None, gt=0, le=300, description="Seconds after which the text stays as it was; unset: 1 for `rule`, 10 for the others."
    )
    max_chars: int = Field(default=20_000, ge=1, le=200_000, description="The longest text that is rewritten, in characters.")
    when: RewriteCondition = Field(default=RewriteCondition(), description="Which answers it is for.")

    @property
    def deadline_s(self) -> float:
        """Seconds that it may take before the text stays as it was."""
        return self.timeout_s or (1.0 if self.kind == "rule" else 10.0)

    @field_validator("language")
    @classmethod
    def _validate_language(cls, code: str | None) -> str | None:
        return code if code is None else _check_languages((code,))[0]

    @model_validator(mode="after")
    def _validate_kind(self) -> "RewriteEntry":
        needs = {"rule": "rules", "model": "instruction"}.get(self.kind)
        if needs is not None and not getattr(self, needs):
            raise ValueError(f"a rewrite of kind '{self.kind}' needs `{needs}`")
        values = {"rules": self.rules, "instruction": self.instruction, "language": self.language}
        if other := [key for key, value in values.items() if value and key not in (needs, self.kind)]:
            raise ValueError(f"a rewrite of kind '{self.kind}' has no `{other[0]}`")
        if self.kind == "rule" and self.model is not None:
            raise ValueError("a rewrite of kind 'rule' has no `model`")
        return self


def rewrite_problems(rewrites: Sequence[RewriteEntry], models: Sequence[str], routes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The key of each name in rewrites that no model (nor route, where routes are allowed) has, and what is wrong."""
    for index, entry in enumerate(rewrites):
        if entry.model is not None and not is_configured(entry.model, models):
            hint = did_you_mean(entry.model, models) or f" There {is_or_are(models)}."
            yield f"rewrites[{index}].model", f"there is no model '{entry.model}'.{hint}"
        names = (*models, *routes)
        for place, pattern in enumerate(entry.models):
            if not _fits_any(pattern, names):
                hint = did_you_mean(pattern, names) or f" There {is_or_are(names)}."
                yield f"rewrites[{index}].models[{place}]", f"no model or route has the name '{pattern}'.{hint}"


def _fits_any(pattern: str, names: Sequence[str]) -> bool:
    """Whether the pattern fits any of the configured names, which may also end in `*`."""
    if not pattern.endswith("*"):
        return is_configured(pattern, names)
    start = pattern[:-1]
    return any(name.startswith(start) or (name.endswith("*") and start.startswith(name[:-1])) for name in names)
