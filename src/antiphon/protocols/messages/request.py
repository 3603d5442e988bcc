"""From a decoded request to the command for its engine."""

from collections.abc import Mapping

from msgspec import Struct, structs

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.documents import FileContent
from antiphon.engine_api.events import MAX_TOKENS
from antiphon.engine_api.options import JsonSchema, Sampling
from antiphon.errors import ClientError, invalid_value, unsupported_parameter
from antiphon.protocols.messages.content import MessagesContext, system_text, to_history
from antiphon.protocols.messages.thinking import Unsign
from antiphon.protocols.messages.tools import allows_parallel_calls, engine_tool_choice, engine_tools
from antiphon.protocols.omissions import Omissions
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.schemas import check_output_schema
from antiphon.wire.codec.types import JsonDict, Unknown
from antiphon.wire.messages.request import (
    CountTokensRequest,
    MessagesRequest,
    ThinkingAdaptive,
    ThinkingBetweenTools,
    ThinkingDisabled,
    ThinkingEnabled,
)

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""From the least to the most."""

_BUDGETS = ((4_096, "low"), (16_384, "medium"))
"""A `budget_tokens` below one of these means its effort; a larger one means `high`."""


class ResolvedMessagesRequest(Struct, frozen=True, kw_only=True):
    """
    A request with everything that it refers to.

    Attributes:
        id: of the message that answers it.
        model: the name that the client requested.
        unsign: reads the signatures of earlier reasoning.
        documents: files that the messages name, by their ids, or URLs where the engine fetches none.
        size_bytes: of the request's JSON, and the files.
        omit_unsupported: whether unsupported tools and blocks are left out (see `Omissions`) rather than refused.
    """

    id: str
    model: str
    request: CountTokensRequest
    capabilities: Capabilities
    unsign: Unsign
    documents: Mapping[str, FileContent] = {}
    size_bytes: int = 0
    omit_unsupported: bool = True

    @property
    def is_streamed(self) -> bool:
        """Whether the client wants the message as a stream."""
        return isinstance(self.request, MessagesRequest) and self.request.stream is True

    @property
    def wants_thinking(self) -> bool:
        """Whether the client takes blocks of reasoning: by default it gets none, as no model of the original thinks unasked."""
        return isinstance(self.request.thinking, ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools)

    @property
    def shows_thinking(self) -> bool:
        """Whether these blocks have text: with `omitted` they have a signature only."""
        thinking = self.request.thinking
        return not (isinstance(thinking, ThinkingEnabled | ThinkingAdaptive) and thinking.display == "omitted")


class MessagesEngineRequest(Struct, frozen=True):
    """The command for the engine, and what it leaves out of the client's request."""

    respond: commands.Respond
    omissions: Omissions


def messages_engine_request(resolved_request: ResolvedMessagesRequest) -> MessagesEngineRequest:
    """
    Translate the request for its engine.

    Raises:
        ClientError: the engine can't do what a field asks, or fields contradict each other.
    """
    request, capabilities = resolved_request.request, resolved_request.capabilities
    context = MessagesContext(
        capabilities,
        resolved_request.model,
        resolved_request.omit_unsupported,
        Omissions(),
        resolved_request.unsign,
        resolved_request.documents,
    )
    if request.messages[-1].role == "assistant":
        # The original's newer models refuse this too; for others the engine API has no word.
        raise ClientError(
            "This model does not support assistant message prefill. The conversation must end with a user message.", param="messages"
        )
    history = to_history(request.messages, context)
    instructions = system_text(request.system) if request.system else None
    if not history:
        raise ClientError("messages: at least one message with content is required", param="messages")
    tools = engine_tools(request, context)
    choice = request.tool_choice or None
    respond = commands.Respond(
        id=resolved_request.id,
        size_bytes=resolved_request.size_bytes,
        whole=not resolved_request.is_streamed,
        history=history,
        instructions=instructions,
        tools=tools,
        tool_choice=engine_tool_choice(choice, tools),
        parallel_tool_calls=allows_parallel_calls(choice),
        sampling=_sampling(request, capabilities, resolved_request.model) if isinstance(request, MessagesRequest) else Sampling(),
        format=_format(request, capabilities, resolved_request.model),
        reasoning_effort=_effort(request, capabilities.efforts),
        # The signature of a block holds it, and there are blocks only where the client wants them.
        encrypt_reasoning=resolved_request.wants_thinking,
    )
    return MessagesEngineRequest(respond, context.omissions)


def clamp_max_tokens(respond: commands.Respond, window: int | None, input_tokens: int) -> commands.Respond:
    """
    The command with no more `max_tokens` than the context window has room for after the input.

    Clients ask for what the original's models can write, 32,000 tokens and more, of any model.
    """
    max_tokens = respond.sampling.max_tokens
    if window is None or max_tokens is None or max_tokens <= (room := max(1, window - input_tokens)):
        return respond
    return structs.replace(respond, sampling=structs.replace(respond.sampling, max_tokens=room))


def _sampling(request: MessagesRequest, capabilities: Capabilities, model: str) -> Sampling:
    temperature, top_p = value_or(request.temperature, None), value_or(request.top_p, None)
    for name, value, is_supported in (("temperature", temperature, capabilities.temperature), ("top_p", top_p, capabilities.top_p)):
        # 1 asks for nothing: it is the default temperature, and a `top_p` that cuts nothing off.
        if value not in (None, 1) and not is_supported:
            raise unsupported_parameter(name, model)
    extra: JsonDict = {}
    if is_set(request.top_k) and request.top_k > 0:
        extra["top_k"] = request.top_k
    if request.stop_sequences:
        extra["stop"] = request.stop_sequences
    return Sampling(temperature=temperature, top_p=top_p, max_tokens=min(request.max_tokens, MAX_TOKENS), extra=extra)


def _format(request: CountTokensRequest, capabilities: Capabilities, model: str) -> JsonSchema | None:
    output_format = request.output_config.format if request.output_config else None
    if not output_format:
        return None
    if isinstance(output_format, Unknown):
        raise invalid_value("output_config.format.type", output_format.type, ["json_schema"])
    if not capabilities.json_schema:
        raise unsupported_parameter("output_config.format", model)
    check_output_schema("output", output_format.schema, "output_config.format.schema")
    return JsonSchema("output", output_format.schema, strict=True)


def _effort(request: CountTokensRequest, supported_efforts: tuple[str, ...]) -> str | None:
    """The effort that is nearest to what the request asks for, and not above it if there is one below."""
    wanted_effort = _wanted_effort(request)
    if wanted_effort is None or not supported_efforts:
        return None
    level = _EFFORTS.index(wanted_effort)
    below = [effort for effort in _EFFORTS[: level + 1] if effort in supported_efforts]
    if wanted_effort == "none":
        return below[-1] if below else None
    # `none` turns reasoning off, which is not what less effort means.
    above = [effort for effort in _EFFORTS[level:] if effort in supported_efforts]
    candidates = [effort for effort in below if effort != "none"][-1:] or above[:1]
    return candidates[0] if candidates else None


def _wanted_effort(request: CountTokensRequest) -> str | None:
    if isinstance(request.thinking, ThinkingDisabled):
        return "none"
    if request.output_config and request.output_config.effort:
        return request.output_config.effort
    if isinstance(request.thinking, ThinkingEnabled):
        budget = request.thinking.budget_tokens
        return next((effort for limit, effort in _BUDGETS if budget < limit), "high")
    return None
