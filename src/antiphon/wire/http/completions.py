"""The types of `POST /v1/completions`, the API from before chats. Requests are passed on; these describe them."""

from typing import Literal

from msgspec import UNSET

from antiphon.wire.codec.types import JsonDict, Maybe, Opt, Wire


class CompletionRequest(Wire, kw_only=True):
    """A text to continue; `suffix` is what follows the gap that the model fills."""

    prompt: str | list[str | int | list[int]]
    model: Opt[str] = UNSET
    suffix: Maybe[str] = UNSET
    max_tokens: Maybe[int] = UNSET
    temperature: Maybe[float] = UNSET
    top_p: Maybe[float] = UNSET
    n: Maybe[int] = UNSET
    best_of: Maybe[int] = UNSET
    stream: Maybe[bool] = UNSET
    stream_options: Maybe[JsonDict] = UNSET
    logprobs: Maybe[int] = UNSET
    echo: Maybe[bool] = UNSET
    stop: Maybe[str | list[str]] = UNSET
    presence_penalty: Maybe[float] = UNSET
    frequency_penalty: Maybe[float] = UNSET
    logit_bias: Maybe[JsonDict] = UNSET
    seed: Maybe[int] = UNSET
    user: Opt[str] = UNSET


class CompletionChoice(Wire, kw_only=True):
    """One continuation."""

    index: int
    text: str
    logprobs: Maybe[JsonDict] = UNSET
    finish_reason: Literal["stop", "length", "content_filter"] | None = None


class CompletionUsage(Wire, kw_only=True):
    """The tokens of the prompt and of all continuations."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(Wire, kw_only=True):
    """Continuations, or in a stream more of them."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Maybe[CompletionUsage] = UNSET
    system_fingerprint: Opt[str] = UNSET
