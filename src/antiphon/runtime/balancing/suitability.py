"""Whether another model can answer a request that was made for one, and the request as it can take it."""

import re

import msgspec
from msgspec import Raw, Struct, structs

from antiphon.engine_api import commands, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import CustomTool, JsonObject, JsonSchema


def missing_ability(request: commands.Respond, capabilities: Capabilities) -> str | None:
    """What a request needs that a model can't do; None if it can all. What only tunes the answer doesn't count."""
    needs = [
        ("tools", bool(request.tools), capabilities.tools),
        ("custom_tools", any(isinstance(tool, CustomTool) for tool in request.tools), capabilities.custom_tools),
        ("grammars", any(isinstance(tool, CustomTool) and tool.grammar for tool in request.tools), capabilities.grammars),
        ("json_object", isinstance(request.format, JsonObject), capabilities.json_object),
        ("json_schema", isinstance(request.format, JsonSchema), capabilities.json_schema),
        ("logprobs", bool(request.sampling.top_logprobs), (capabilities.max_top_logprobs or 0) >= (request.sampling.top_logprobs or 0)),
        ("hosted", bool(request.hosted_tools), {tool.type for tool in request.hosted_tools} <= set(capabilities.hosted)),
        ("compacts", request.compaction is not None, capabilities.compacts),
        ("audio_out", request.voice is not None, capabilities.audio_out),
        *_history_needs(request, capabilities),
    ]
    return next((name for name, is_needed, is_there in needs if is_needed and not is_there), None)


def _history_needs(request: commands.Respond, capabilities: Capabilities) -> list[tuple[str, bool, bool]]:
    items = request.history
    kinds = {type(part) for item in items if isinstance(item, history.Message | history.ToolResult) for part in item.parts}
    return [
        ("images", history.ImagePart in kinds, capabilities.images),
        ("files", history.FilePart in kinds, capabilities.files),
        ("audio_in", bool(kinds & {history.AudioPart, history.SpeechPart}), capabilities.audio_in),
        ("videos", history.VideoPart in kinds, capabilities.videos),
        # What an engine has encrypted, or its tools have left, only that engine reads.
        ("encrypted_reasoning", any(isinstance(item, history.ReasoningItem) and item.encrypted_content for item in items), False),
        ("hosted_items", any(isinstance(item, history.HostedToolItem) for item in items), False),
    ]


class _RelayedFields(Struct):
    """What of a request that is passed on needs an ability; of the rest, the model's server says whether it can do it."""

    tools: list[Raw] | None = None
    functions: list[Raw] | None = None
    response_format: dict[str, Raw] | None = None


# A text that speaks of such a part has its quotes escaped.
_PART = re.compile(rb'"type"\s*:\s*"(image_url|input_audio|file)"')
_PART_ABILITIES = {b"image_url": "images", b"input_audio": "audio_in", b"file": "files"}
_FORMATS = {b'"json_object"': "json_object", b'"json_schema"': "json_schema"}


def missing_relay_ability(body: bytes, capabilities: Capabilities) -> str | None:
    """
    What a request that is passed on needs that a model can't do, as far as its JSON shows without being read in full;
    None if nothing is missing.
    """
    needs = {_PART_ABILITIES[kind] for kind in _PART.findall(body)}
    try:
        fields = msgspec.json.decode(body, type=_RelayedFields)
    except (ValueError, RecursionError):  # its server will say what is wrong with it
        fields = _RelayedFields()
    if fields.tools or fields.functions:
        needs.add("tools")
    format = bytes((fields.response_format or {}).get("type", Raw(b"")))
    if format in _FORMATS:
        needs.add(_FORMATS[format])
    return next((name for name in sorted(needs) if not getattr(capabilities, name)), None)


def adapt(request: commands.Respond, capabilities: Capabilities) -> commands.Respond:
    """The request without what the model does not distinguish."""
    sampling = structs.replace(
        request.sampling,
        temperature=request.sampling.temperature if capabilities.temperature else None,
        top_p=request.sampling.top_p if capabilities.top_p else None,
        presence_penalty=request.sampling.presence_penalty if capabilities.penalties else None,
        frequency_penalty=request.sampling.frequency_penalty if capabilities.penalties else None,
    )
    return structs.replace(
        request,
        sampling=sampling,
        truncate=request.truncate and capabilities.truncation,
        reasoning_effort=request.reasoning_effort if request.reasoning_effort in capabilities.efforts else None,
        reasoning_summary=request.reasoning_summary if capabilities.summaries else None,
        encrypt_reasoning=request.encrypt_reasoning and capabilities.encrypts_reasoning,
        verbosity=request.verbosity if request.verbosity in capabilities.verbosities else None,
    )


def fits(input_tokens: int, request: commands.Respond, capabilities: Capabilities) -> bool:
    """Whether so many tokens of input and the output asked for fit the context window, as far as that is known."""
    window = capabilities.context_window
    if window is None or (request.truncate and capabilities.truncation):
        return True
    return input_tokens + (request.sampling.max_tokens or 0) <= window
