"""
The vocabulary between protocols and engines: every word that one can say to the other.

Neither side knows the other's wire. A protocol turns its client's messages into these words, an engine turns these words into
whatever its model understands, and back. Words are immutable and carry the id of the response they belong to. The history that a
`Respond` carries is in `antiphon.turns`.
"""

from typing import Any, Literal

from msgspec import Struct

from antiphon.errors import Fault
from antiphon.turns import Phase, Turn


class _Word(Struct, frozen=True, tag_field="word"):
    """Tagged by class name, so that a word can cross a process boundary."""


class FunctionTool(_Word, frozen=True, tag=True):
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


class CustomTool(_Word, frozen=True, tag=True):
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


class HostedTool(_Word, frozen=True, tag=True):
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


class JsonObject(_Word, frozen=True, tag=True):
    """The answer is one JSON object."""


class JsonSchema(_Word, frozen=True, tag=True):
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


class Settings(Struct, frozen=True, kw_only=True):
    """
    What a conversation is opened with.

    Attributes:
        model: the name that the client asked for.
        tenant: whose it is; an engine that caches keeps tenants apart.
    """

    model: str
    tenant: str = ""


class Abilities(Struct, frozen=True, kw_only=True):
    """
    What an engine can do, so that a protocol can refuse the rest by name before any work.

    Attributes:
        context_window: tokens, or None when it isn't known.
        efforts: the values of reasoning effort that it tells apart; empty for a model that doesn't reason.
        verbosities: likewise for verbosity.
        max_top_logprobs: the most alternatives per token; None when it reports no log probabilities.
        counts_tokens: whether it is a `CountingEngine`.
        hosted: the types of tools that it takes as `HostedTool`; it then also takes the items that they leave, as `turns.Hosted`.
        temperature_default: what an answer is sampled with when nothing was asked; likewise `top_p_default`.
    """

    images: bool = False
    files: bool = False
    audio_in: bool = False
    tools: bool = False
    custom_tools: bool = False
    grammars: bool = False
    json_object: bool = False
    json_schema: bool = False
    truncation: bool = False
    temperature: bool = True
    top_p: bool = True
    temperature_default: float = 1.0
    top_p_default: float = 1.0
    penalties: bool = False
    max_top_logprobs: int | None = None
    efforts: tuple[str, ...] = ()
    summaries: bool = False
    verbosities: tuple[str, ...] = ()
    context_window: int | None = None
    counts_tokens: bool = False
    hosted: tuple[str, ...] = ()


class Respond(_Word, frozen=True, kw_only=True, tag=True):
    """
    Answer.

    Attributes:
        id: of the response; every word of the answer carries it.
        history: all that was said, oldest first; ends with what is to be answered.
        instructions: what the developer tells the model for this answer, before everything else.
        hosted: tools that the engine takes as they are.
        namespaces: what the tools of each namespace have in common, in words for the model.
        format: the shape of the answer; None for plain text.
        truncate: whether the oldest turns may be dropped to fit; else too long an input is refused.
        effort: how much to reason; None leaves it to the engine.
        summarise: whether and how to summarise the reasoning (`auto`, `concise`, `detailed`).
        seal: whether the reasoning is wanted in a sealed form too, by a client that will give it back itself.
    """

    id: str
    history: tuple[Turn, ...]
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    hosted: tuple[HostedTool, ...] = ()
    namespaces: dict[str, str] = {}
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    sampling: Sampling = Sampling()
    format: JsonObject | JsonSchema | None = None
    truncate: bool = False
    effort: str | None = None
    summarise: str | None = None
    seal: bool = False
    verbosity: str | None = None


class Cancel(_Word, frozen=True, tag=True):
    """Stop answering; the answer ends with `Ended(id, "cancelled")` unless it had ended before."""

    id: str


ToEngine = Respond | Cancel


class Likelihood(Struct, frozen=True):
    """One token, or an alternative to one, with its log probability."""

    token: str
    logprob: float
    bytes: tuple[int, ...] = ()


class TokenLogprob(Struct, frozen=True):
    """A token that was chosen, and the alternatives to it."""

    chosen: Likelihood
    alternatives: tuple[Likelihood, ...] = ()


class ItemBreak(_Word, frozen=True, tag=True):
    """
    The item said so far is whole, and what follows is another; engines whose answers don't come as items never say it.

    Attributes:
        item_id: what the next item is to be called; None leaves that to the protocol.
        phase: of a message that is the next item.
    """

    id: str
    item_id: str | None = None
    phase: Phase | None = None


class Text(_Word, frozen=True, tag=True):
    """More of the answer's text."""

    id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Annotated(_Word, frozen=True, tag=True):
    """A citation of the text said so far, in the shape of the Responses API's annotations."""

    id: str
    annotation: dict[str, Any]


class Refusal(_Word, frozen=True, tag=True):
    """More of the words with which the model declines."""

    id: str
    text: str


class Reasoning(_Word, frozen=True, tag=True):
    """More of the model's reasoning: its own words, or where `summary` is set an account of them for the user."""

    id: str
    text: str
    summary: bool = False


class ReasoningBreak(_Word, frozen=True, tag=True):
    """The summary so far is one whole; what follows is another part of it."""

    id: str


class Sealed(_Word, frozen=True, tag=True):
    """The reasoning just given, in a form that only its engine can read back."""

    id: str
    sealed: str


class Calling(_Word, frozen=True, tag=True):
    """The model begins to call a tool; with `custom` the tool takes free text."""

    id: str
    call_id: str
    name: str
    custom: bool = False
    namespace: str | None = None


class Arguments(_Word, frozen=True, tag=True):
    """More of a call's arguments (JSON text), or of a custom call's input."""

    id: str
    call_id: str
    text: str


class Called(_Word, frozen=True, tag=True):
    """The call's arguments are complete. Calls that say nothing of the sort are complete when the answer ends."""

    id: str
    call_id: str


class HostedBegan(_Word, frozen=True, tag=True):
    """A hosted tool is at work: `item` as the Responses API has it, its `type` among its fields."""

    id: str
    item: dict[str, Any]


class HostedMoved(_Word, frozen=True, tag=True):
    """The hosted tool at work has come further: `event` as the Responses API has it."""

    id: str
    event: dict[str, Any]


class HostedDone(_Word, frozen=True, tag=True):
    """The hosted tool is done; `item` is all of it."""

    id: str
    item: dict[str, Any]


class Used(_Word, frozen=True, kw_only=True, tag=True):
    """Tokens counted; the last one said for a response holds."""

    id: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


EndReason = Literal["stop", "length", "content_filter", "cancelled"]


class Ended(_Word, frozen=True, tag=True):
    """The answer is over: whole (`stop`, also when it ends in calls), cut at the token limit, filtered, or cancelled."""

    id: str
    reason: EndReason = "stop"


class Broke(_Word, frozen=True, kw_only=True, tag=True):
    """
    The answer failed; nothing more of it comes.

    Attributes:
        status: the HTTP status that tells it best: 4xx when the request was at fault.
        code: the API's error code.
        type: the API's error family.
        retry_after_s: seconds after which trying again may help.
    """

    id: str
    message: str
    status: int = 500
    code: str | None = "server_error"
    type: str = "server_error"
    param: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def by(cls, id: str, fault: Fault) -> "Broke":
        """The answer `id` failed by `fault`."""
        return cls(
            id=id,
            message=fault.message,
            status=fault.status,
            code=fault.code,
            type=fault.type,
            param=fault.param,
            retry_after_s=fault.retry_after_s,
        )


FromEngine = (
    ItemBreak
    | Text
    | Annotated
    | Refusal
    | Reasoning
    | ReasoningBreak
    | Sealed
    | Calling
    | Arguments
    | Called
    | HostedBegan
    | HostedMoved
    | HostedDone
    | Used
    | Ended
    | Broke
)
