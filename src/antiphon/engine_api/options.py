"""
What is asked of an engine, and what an engine can do: the values that words carry.

Kept apart from `antiphon.engine_api.commands` so that each can be read at a sitting; whoever uses them finds all of them there too.
"""

from typing import Any, Literal

from msgspec import Struct


class _Option(Struct, frozen=True, tag_field="word"):
    """Tagged by class name where it is one of several, so that it can cross a process boundary."""


class FunctionTool(_Option, frozen=True, tag=True):
    """A function that the model may call; `parameters` is a JSON Schema, None for no arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    namespace: str | None = None

    @property
    def key(self) -> str:
        """What tells it from all other tools."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


class CustomTool(_Option, frozen=True, tag=True):
    """A tool called with free text; `grammar`, where given, is what the text must match, in `syntax` (`lark` or `regex`)."""

    name: str
    description: str | None = None
    syntax: str | None = None
    grammar: str | None = None
    namespace: str | None = None

    @property
    def key(self) -> str:
        """What tells it from all other tools."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


Tool = FunctionTool | CustomTool


class HostedTool(_Option, frozen=True, tag=True):
    """A tool that the engine runs itself, or has a form of its own for, as the Responses API describes it; `spec` has its `type`."""

    type: str
    spec: dict[str, Any]


class ToolChoice(Struct, frozen=True):
    """
    Whether and which tools are called.

    Attributes:
        mode: `none`, `auto` (the model decides) or `required` (at least one call).
        names: the only tools that may be called, by their `key`, or by the `type` of a hosted one; None for all of them.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None

    @property
    def name_set(self) -> frozenset[str] | None:
        """`names`, to look many tools up in: a request may have as many as it has room for."""
        return None if self.names is None else frozenset(self.names)


class JsonObject(_Option, frozen=True, tag=True):
    """The answer is one JSON object."""


class JsonSchema(_Option, frozen=True, tag=True):
    """The answer is JSON that satisfies `schema`; `strict` asks for a guarantee, not an attempt."""

    name: str
    schema: dict[str, Any]
    strict: bool = False
    description: str | None = None


class Sampling(Struct, frozen=True):
    """
    How words are chosen; None leaves it to the engine.

    Attributes:
        max_tokens: visible and reasoning tokens together.
        top_logprobs: alternatives to report for every token, 0 to 20; None for no log probabilities at all.
        extra: what the client asked beyond the protocol (such as `seed` or `top_k`); an engine takes what it knows.
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
        kind: of the conversation; engines of which there are few are given out by it.
        key_id: of the key that it was asked for with; empty where there is none.
    """

    model: str
    tenant: str = ""
    kind: ConversationKind = "responses"
    key_id: str = ""


class Voice(Struct, frozen=True):
    """
    How an answer is spoken.

    Attributes:
        name: of the voice; None for the engine's own.
        rate_hz: samples a second of the `Sound` that is to come.
        speed: 1 as the voice is, 2 twice as fast.
        reference: a recording, s16le mono at 16 kHz, of the voice to speak with, for an engine that `clones`.
    """

    name: str | None = None
    rate_hz: int = 24_000
    speed: float = 1.0
    reference: bytes | None = None


class TurnDetection(Struct, frozen=True):
    """
    How it is told when someone speaks, and when they are done.

    Attributes:
        kind: `server_vad` by silence, `semantic_vad` by what was said.
        threshold: how sure it must be that there is speech, 0 to 1.
        prefix_padding_ms: sound before the speech that is part of it.
        silence_duration_ms: silence after which speech is over.
        eagerness: of `semantic_vad`: how soon it takes a turn for over (`low`, `medium`, `high`, `auto`).
    """

    kind: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    eagerness: str = "auto"


class Transcription(Struct, frozen=True):
    """
    How what is heard is written down; None leaves it to the engine.

    Attributes:
        languages: those that may be spoken, as ISO 639-1 codes; empty for any.
        prompt: words that tell what it is about.
        keywords: words that are likely to be said.
        delay: how long to wait for certainty (`minimal` to `xhigh`).
        logprobs: whether the log probabilities of its tokens are wanted.
        word_times: whether the times of its words are wanted.
    """

    model: str | None = None
    languages: tuple[str, ...] = ()
    prompt: str | None = None
    keywords: tuple[str, ...] = ()
    delay: str | None = None
    logprobs: bool = False
    word_times: bool = False


class NoiseReduction(Struct, frozen=True):
    """What is done against noise: for a microphone `near_field` or `far_field`; `strength` from 0 to 1."""

    kind: str
    strength: float = 1.0


class Retention(Struct, frozen=True):
    """
    How much of a conversation is left when it has to be truncated.

    Attributes:
        ratio: of the tokens that there is room for, 0 to 1; less leaves room for turns to come, so that a cache lasts.
        most_tokens: after the instructions; None for what the model has room for.
    """

    ratio: float = 1.0
    max_tokens: int | None = None
