"""The options of requests and conversations: tools, sampling, voices, turn detection, transcription."""

from typing import Any, Literal

from msgspec import Struct


class _Option(Struct, frozen=True, tag_field="word"):
    """Tagged by class name where it is one of several, so that it can cross a process boundary."""


class FunctionTool(_Option, frozen=True, tag=True):
    """
    A function that the model may call; `parameters` is a JSON Schema, None for no arguments.

    Attributes:
        defer_loading: whether the engine's own search for tools has to find it first.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    namespace: str | None = None
    defer_loading: bool = False

    @property
    def key(self) -> str:
        """Identifies the tool among all others."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


class CustomTool(_Option, frozen=True, tag=True):
    """
    A tool that takes free text; `grammar`, if set, constrains the text, in `syntax` (`lark` or `regex`). `defer_loading` is
    as in `FunctionTool`.
    """

    name: str
    description: str | None = None
    syntax: str | None = None
    grammar: str | None = None
    namespace: str | None = None
    defer_loading: bool = False

    @property
    def key(self) -> str:
        """Identifies the tool among all others."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


Tool = FunctionTool | CustomTool


class HostedTool(_Option, frozen=True, tag=True):
    """A tool that the engine runs itself, or has its own form for, as in the Responses API; `spec` has its `type`."""

    type: str
    spec: dict[str, Any]


class ToolChoice(Struct, frozen=True):
    """
    Whether tools are called, and which.

    Attributes:
        mode: `none`, `auto` (the model decides) or `required` (at least one call).
        names: the only tools that may be called, by `key`, or by `type` for hosted ones; None for all.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None

    @property
    def name_set(self) -> frozenset[str] | None:
        """`names`, for looking up many tools; None for all."""
        return None if self.names is None else frozenset(self.names)


class JsonObject(_Option, frozen=True, tag=True):
    """The output is one JSON object."""


class JsonSchema(_Option, frozen=True, tag=True):
    """The output is JSON that satisfies `schema`; `strict` requires a guarantee."""

    name: str
    schema: dict[str, Any]
    strict: bool = False
    description: str | None = None


class Sampling(Struct, frozen=True):
    """
    How tokens are sampled; None leaves it to the engine.

    Attributes:
        max_tokens: visible and reasoning tokens together.
        top_logprobs: alternatives to report for every token, 0 to 20; None for no log probabilities.
        extra: fields beyond the protocol (such as `seed` or `top_k`); an engine takes those it knows.
    """

    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    top_logprobs: int | None = None
    extra: dict[str, Any] = {}


ConversationKind = Literal["responses", "realtime", "chat", "audio", "video"]
"""Kinds of conversation; the last three are the modes of the MiniCPM-o protocol."""


class ConversationSettings(Struct, frozen=True, kw_only=True):
    """
    What a conversation is opened with.

    Attributes:
        model: the name that the client asked for.
        tenant: whose it is; an engine that caches keeps tenants apart.
        kind: decides which pooled workers may serve it.
        key_id: of the API key that opened it; empty if none.
        cache_key: the same for requests that begin alike, so that they go to the server that has computed the beginning
            before; empty if nothing says which those are.
    """

    model: str
    tenant: str = ""
    kind: ConversationKind = "responses"
    key_id: str = ""
    cache_key: str = ""


class Voice(Struct, frozen=True):
    """
    How a response is spoken.

    Attributes:
        name: of the voice; None for the engine's default.
        rate_hz: samples per second of the `AudioDelta`s.
        speed: 1 is the voice's own, 2 twice as fast.
        reference: a recording of the voice to clone, s16le mono at 16 kHz, for an engine that `clones`.
    """

    name: str | None = None
    rate_hz: int = 24_000
    speed: float = 1.0
    reference: bytes | None = None


class TurnDetection(Struct, frozen=True):
    """
    How the start and the end of speech are detected.

    Attributes:
        kind: `server_vad` by silence, `semantic_vad` by what was said.
        threshold: the probability of speech to act on, 0 to 1.
        prefix_padding_ms: audio before the speech that belongs to the turn.
        silence_duration_ms: silence that ends a turn.
        eagerness: of `semantic_vad`: how soon it ends a turn (`low`, `medium`, `high`, `auto`).
    """

    kind: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    eagerness: str = "auto"


LOOKBACK_MS = 4_000
"""
How much silence sessions and engines keep while turns are detected: engines report speech late, and a turn starts with
padding before it.
"""


class Transcription(Struct, frozen=True):
    """
    How audio is transcribed; None leaves it to the engine.

    Attributes:
        languages: that may be spoken, as ISO 639-1 codes; empty for any.
        prompt: text that tells the subject.
        keywords: words that are likely to occur.
        delay: how long to wait for certainty (`minimal` to `xhigh`).
        logprobs: whether to report the log probabilities of tokens.
        word_times: whether to report the times of words.
    """

    model: str | None = None
    languages: tuple[str, ...] = ()
    prompt: str | None = None
    keywords: tuple[str, ...] = ()
    delay: str | None = None
    logprobs: bool = False
    word_times: bool = False


class NoiseReduction(Struct, frozen=True):
    """Noise suppression for a microphone that is `near_field` or `far_field`; `strength` from 0 to 1."""

    kind: str
    strength: float = 1.0


class Compaction(Struct, frozen=True):
    """
    When an engine that `compacts` puts a summary in the place of the conversation.

    Attributes:
        threshold: where the input has more tokens than this; None leaves it to the engine.
        is_requested: in any case, and nothing else is generated.
    """

    threshold: int | None = None
    is_requested: bool = False


class Retention(Struct, frozen=True):
    """
    How much of a conversation is left when it is truncated.

    Attributes:
        ratio: of the tokens that fit, 0 to 1; a lower one leaves room for later turns, so that a prompt cache lasts.
        max_tokens: after the instructions; None for what the model has room for.
    """

    ratio: float = 1.0
    max_tokens: int | None = None
