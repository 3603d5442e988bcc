"""The tools a model may be given, and the ways to choose among them."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, field

from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_depth
from antiphon.wire.codec.types import JsonDict, JsonValue, Maybe, Tagged, Typed, Unknown, Wire, encode

# `\Z` is what `$` is in JavaScript: Python's `$` also matches before a line end.
ToolName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_-]+\Z")]
FreeName = Annotated[str, Meta(min_length=1, max_length=128)]
ServerLabel = Annotated[str, Meta(min_length=1, pattern=r"^[a-zA-Z0-9_-]+\Z")]
Callers = Maybe[list[Literal["direct", "programmatic"]]]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SearchContextSize = Literal["low", "medium", "high"]


# Tools that the client runs


class FunctionTool(Tagged, kw_only=True, tag="function"):
    """A function; `parameters` is the JSON Schema of its arguments."""

    name: ToolName
    description: Maybe[str] = UNSET
    parameters: Maybe[JsonDict] = UNSET
    strict: Maybe[bool] = UNSET
    output_schema: Maybe[JsonDict] = UNSET
    allowed_callers: Callers = UNSET
    async_: Maybe[bool] = field(default=UNSET, name="async")
    defer_loading: Maybe[bool] = UNSET


class TextFormat(Tagged, kw_only=True, tag="text"):
    """Free text: of a custom tool's input, or of the output."""


class GrammarFormat(Tagged, kw_only=True, tag="grammar"):
    """Text that matches a grammar."""

    definition: str
    syntax: Literal["lark", "regex"]


class CustomTool(Tagged, kw_only=True, tag="custom"):
    """A tool that is called with text instead of arguments."""

    name: FreeName
    description: Maybe[str] = UNSET
    format: Maybe[TextFormat | GrammarFormat] = UNSET
    allowed_callers: Callers = UNSET
    async_: Maybe[bool] = field(default=UNSET, name="async")
    defer_loading: Maybe[bool] = UNSET


class NamespaceTool(Tagged, kw_only=True, tag="namespace"):
    """Tools under one name."""

    description: str
    name: FreeName
    # Unknown members are kept for engines that take a namespace as it is.
    tools: list[FunctionTool | CustomTool | Unknown]


class ToolSearchTool(Tagged, kw_only=True, tag="tool_search"):
    """Finds tools whose loading was deferred."""

    description: Maybe[str] = UNSET
    execution: Maybe[Literal["server", "client"]] = UNSET
    parameters: Maybe[JsonValue] = UNSET


class ProgrammaticToolCalling(Tagged, kw_only=True, tag="programmatic_tool_calling"):
    """Lets the model call tools from a program it writes."""


class LocalShellTool(Tagged, kw_only=True, tag="local_shell"):
    """A shell on the client's machine, one command at a time."""


class ApplyPatchTool(Tagged, kw_only=True, tag="apply_patch"):
    """Changes files on the client's machine."""

    allowed_callers: Callers = UNSET


class ComputerTool(Tagged, kw_only=True, tag="computer"):
    """A screen, a pointer and a keyboard."""


class ComputerUsePreviewTool(Tagged, kw_only=True, tag="computer_use_preview"):
    """A screen, a pointer and a keyboard, as models of the preview know them; sizes in pixels."""

    display_height: int
    display_width: int
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]


# Tools that search


class _Comparison(Tagged, kw_only=True):
    # One of both names the attribute: the reference has `key`, the guide to filters `property`.
    key: Maybe[str] = UNSET
    property: Maybe[str] = UNSET
    value: str | int | float | bool | list[str | int | float]


class Equal(_Comparison, kw_only=True, tag="eq"):
    """`key` is `value`."""


class NotEqual(_Comparison, kw_only=True, tag="ne"):
    """`key` is not `value`."""


class Greater(_Comparison, kw_only=True, tag="gt"):
    """`key` is above `value`."""


class GreaterOrEqual(_Comparison, kw_only=True, tag="gte"):
    """`key` is not below `value`."""


class Less(_Comparison, kw_only=True, tag="lt"):
    """`key` is below `value`."""


class LessOrEqual(_Comparison, kw_only=True, tag="lte"):
    """`key` is not above `value`."""


class In(_Comparison, kw_only=True, tag="in"):
    """`key` is among `value`."""


class NotIn(_Comparison, kw_only=True, tag="nin"):
    """`key` is not among `value`."""


class And(Tagged, kw_only=True, tag="and"):
    """All of `filters`, which are comparisons or compounds, hold."""

    filters: list[JsonDict]


class Or(Tagged, kw_only=True, tag="or"):
    """One of `filters`, which are comparisons or compounds, holds."""

    filters: list[JsonDict]


Filter = Equal | NotEqual | Greater | GreaterOrEqual | Less | LessOrEqual | In | NotIn | And | Or


class HybridSearch(Wire, kw_only=True):
    """The weights of embeddings and of text when results are ranked by both; the guide has them with `rrf_`."""

    embedding_weight: Maybe[float] = UNSET
    text_weight: Maybe[float] = UNSET
    rrf_embedding_weight: Maybe[float] = UNSET
    rrf_text_weight: Maybe[float] = UNSET


class RankingOptions(Wire, kw_only=True):
    """How results are ranked."""

    hybrid_search: Maybe[HybridSearch] = UNSET
    ranker: Maybe[Literal["auto", "default-2024-11-15"]] = UNSET
    score_threshold: Maybe[float] = UNSET


class FileSearchTool(Tagged, kw_only=True, tag="file_search"):
    """Searches vector stores."""

    vector_store_ids: list[str]
    filters: Maybe[Filter] = UNSET
    max_num_results: Maybe[Annotated[int, Meta(ge=1, le=50)]] = UNSET
    ranking_options: Maybe[RankingOptions] = UNSET


class DomainFilters(Wire, kw_only=True):
    """The domains, with their subdomains, that a search may use, and those that it may not."""

    allowed_domains: Maybe[list[str]] = UNSET
    blocked_domains: Maybe[list[str]] = UNSET


class UserLocation(Wire, kw_only=True):
    """About where the user is; `country` is an ISO code of two letters, `timezone` an IANA name."""

    type: Maybe[Literal["approximate"]] = UNSET
    city: Maybe[str] = UNSET
    country: Maybe[str] = UNSET
    region: Maybe[str] = UNSET
    timezone: Maybe[str] = UNSET


class WebSearchTool(Tagged, kw_only=True, tag="web_search"):
    """Searches the web."""

    external_web_access: Maybe[bool] = UNSET
    filters: Maybe[DomainFilters] = UNSET
    search_context_size: Maybe[SearchContextSize] = UNSET
    user_location: Maybe[UserLocation] = UNSET


class WebSearch20250826Tool(WebSearchTool, kw_only=True, tag="web_search_2025_08_26"):
    """Searches the web, as of that date."""


class WebSearchPreviewTool(Tagged, kw_only=True, tag="web_search_preview"):
    """Searches the web, as models of the preview know it."""

    search_content_types: Maybe[list[Literal["text", "image"]]] = UNSET
    search_context_size: Maybe[SearchContextSize] = UNSET
    user_location: Maybe[UserLocation] = UNSET


class WebSearchPreview20250311Tool(WebSearchPreviewTool, kw_only=True, tag="web_search_preview_2025_03_11"):
    """Searches the web, as of that date."""


# Tools that run elsewhere


class ToolFilter(Wire, kw_only=True):
    """Some of a server's tools: by name, or all that only read."""

    read_only: Maybe[bool] = UNSET
    tool_names: Maybe[list[str]] = UNSET


class ApprovalFilter(Wire, kw_only=True):
    """Which tools always or never need the user's approval."""

    always: Maybe[ToolFilter] = UNSET
    never: Maybe[ToolFilter] = UNSET


Connector = Literal[
    "connector_dropbox",
    "connector_gmail",
    "connector_googlecalendar",
    "connector_googledrive",
    "connector_microsoftteams",
    "connector_outlookcalendar",
    "connector_outlookemail",
    "connector_sharepoint",
]


class McpTool(Tagged, kw_only=True, tag="mcp"):
    """The tools of a Model Context Protocol server, found by one of `server_url`, `connector_id` and `tunnel_id`."""

    server_label: ServerLabel
    allowed_callers: Callers = UNSET
    allowed_tools: Maybe[list[str] | ToolFilter] = UNSET
    authorization: Maybe[str] = UNSET
    connector_id: Maybe[Connector] = UNSET
    defer_loading: Maybe[bool] = UNSET
    headers: Maybe[dict[str, str]] = UNSET
    require_approval: Maybe[Literal["always", "never"] | ApprovalFilter] = UNSET
    server_description: Maybe[str] = UNSET
    server_url: Maybe[str] = UNSET
    tunnel_id: Maybe[Annotated[str, Meta(pattern=r"^tunnel_[a-z0-9]{32}\Z")]] = UNSET


class DomainSecret(Wire, kw_only=True):
    """A secret for requests to a domain."""

    domain: str
    name: str
    value: str


class NetworkDisabled(Tagged, kw_only=True, tag="disabled"):
    """A container without a network."""


class NetworkAllowlist(Tagged, kw_only=True, tag="allowlist"):
    """A container that reaches some domains."""

    allowed_domains: list[str]
    domain_secrets: Maybe[list[DomainSecret]] = UNSET


NetworkPolicy = NetworkDisabled | NetworkAllowlist
MemoryLimit = Literal["1g", "4g", "16g", "64g"]
FileIds = Annotated[list[str], Meta(max_length=50)]


class AutoContainer(Tagged, kw_only=True, tag="auto"):
    """A container made for a code interpreter."""

    file_ids: Maybe[FileIds] = UNSET
    memory_limit: Maybe[MemoryLimit] = UNSET
    network_policy: Maybe[NetworkPolicy] = UNSET


class CodeInterpreterTool(Tagged, kw_only=True, tag="code_interpreter"):
    """Runs Python in a container: one that exists, by id, or one made for it."""

    container: str | Typed[AutoContainer]
    allowed_callers: Callers = UNSET


class SkillReference(Tagged, kw_only=True, tag="skill_reference"):
    """A skill that was uploaded."""

    skill_id: str
    version: Maybe[str] = UNSET


class SkillArchive(Tagged, kw_only=True, tag="base64"):
    """A skill's files as a zip archive in base64."""

    data: str
    media_type: Literal["application/zip"]


class InlineSkill(Tagged, kw_only=True, tag="inline"):
    """A skill that comes with the request."""

    description: str
    name: str
    source: Typed[SkillArchive]


class LocalSkill(Wire, kw_only=True):
    """A skill in a folder of the client's machine."""

    description: str
    name: str
    path: str


class NewContainer(Tagged, kw_only=True, tag="container_auto"):
    """A container made for a shell."""

    file_ids: Maybe[FileIds] = UNSET
    memory_limit: Maybe[MemoryLimit] = UNSET
    network_policy: Maybe[NetworkPolicy] = UNSET
    skills: Maybe[Annotated[list[SkillReference | InlineSkill], Meta(max_length=200)]] = UNSET


class LocalEnvironment(Tagged, kw_only=True, tag="local"):
    """The client's own machine."""

    skills: Maybe[list[LocalSkill]] = UNSET


class ContainerReference(Tagged, kw_only=True, tag="container_reference"):
    """A container that exists."""

    container_id: str


class ShellTool(Tagged, kw_only=True, tag="shell"):
    """A shell, in a container or on the client's machine."""

    allowed_callers: Callers = UNSET
    environment: Maybe[NewContainer | LocalEnvironment | ContainerReference] = UNSET


class ImageMask(Wire, kw_only=True):
    """Where an image may change."""

    file_id: Maybe[str] = UNSET
    image_url: Maybe[str] = UNSET


class SvgReasoning(Wire, kw_only=True):
    """The reasoning effort for an SVG image."""

    effort: Maybe[Effort] = UNSET


class SvgOptions(Wire, kw_only=True):
    """The model that generates SVG images."""

    model: Maybe[str] = UNSET
    reasoning: Maybe[SvgReasoning] = UNSET


class ImageGenerationTool(Tagged, kw_only=True, tag="image_generation"):
    """Generates images; `size` is `WIDTHxHEIGHT` in pixels, or `auto`."""

    action: Maybe[Literal["generate", "edit", "auto"]] = UNSET
    background: Maybe[Literal["transparent", "opaque", "auto"]] = UNSET
    complexity: Maybe[Literal["low", "medium", "high"]] = UNSET
    frame_count: Maybe[int] = UNSET
    frame_duration_ms: Maybe[int] = UNSET
    input_fidelity: Maybe[Literal["high", "low"]] = UNSET
    input_image_mask: Maybe[ImageMask] = UNSET
    model: Maybe[str] = UNSET
    moderation: Maybe[Literal["auto", "low"]] = UNSET
    output_compression: Maybe[Annotated[int, Meta(ge=0, le=100)]] = UNSET
    output_format: Maybe[Literal["png", "webp", "jpeg", "gif", "svg"]] = UNSET
    partial_images: Maybe[Annotated[int, Meta(ge=0, le=3)]] = UNSET
    quality: Maybe[Literal["low", "medium", "high", "xhigh", "max", "auto"]] = UNSET
    size: Maybe[str] = UNSET
    svg: Maybe[SvgOptions] = UNSET


Tool = (
    FunctionTool
    | FileSearchTool
    | ComputerTool
    | ComputerUsePreviewTool
    | WebSearchTool
    | WebSearch20250826Tool
    | McpTool
    | CodeInterpreterTool
    | ProgrammaticToolCalling
    | ImageGenerationTool
    | LocalShellTool
    | ShellTool
    | CustomTool
    | NamespaceTool
    | ToolSearchTool
    | WebSearchPreviewTool
    | WebSearchPreview20250311Tool
    | ApplyPatchTool
    | Unknown
)

_reader: Reader[Tool] = Reader(Tool)


def decode_tool(body: bytes, path: str = "tool") -> Tool:
    """
    Decode a tool.

    Args:
        body: JSON.
        path: of the tool in the request, for error messages.

    Raises:
        ClientError: it is invalid.
    """
    check_depth(body)
    return _reader.read(body, path)


def encode_tool(tool: Tool) -> bytes:
    """JSON of a tool."""
    return encode(tool)


# Tool choices


class AllowedToolsChoice(Tagged, kw_only=True, tag="allowed_tools"):
    """Only these tools, each given by its `type` and its name; `required` asks for at least one call."""

    mode: Literal["auto", "required"] = "auto"  # which Open Responses does not require
    tools: list[JsonDict]


class FunctionChoice(Tagged, kw_only=True, tag="function"):
    """A call of this function."""

    name: str


class CustomChoice(Tagged, kw_only=True, tag="custom"):
    """A call of this custom tool."""

    name: str


class McpChoice(Tagged, kw_only=True, tag="mcp"):
    """A call of a tool of this server, or of just one of them."""

    server_label: str
    name: Maybe[str] = UNSET


class ProgrammaticChoice(Tagged, kw_only=True, tag="programmatic_tool_calling"):
    """A program that calls tools."""


class ApplyPatchChoice(Tagged, kw_only=True, tag="apply_patch"):
    """A change of files."""


class ShellChoice(Tagged, kw_only=True, tag="shell"):
    """A shell command."""


class HostedChoice(Tagged, kw_only=True):
    """A call of a tool that the server runs, given by its `type` alone."""


class FileSearchChoice(HostedChoice, kw_only=True, tag="file_search"):
    """A search of vector stores."""


class WebSearchPreviewChoice(HostedChoice, kw_only=True, tag="web_search_preview"):
    """A search of the web."""


class WebSearchPreview20250311Choice(HostedChoice, kw_only=True, tag="web_search_preview_2025_03_11"):
    """A search of the web, as of that date."""


class ComputerChoice(HostedChoice, kw_only=True, tag="computer"):
    """A use of the computer."""


class ComputerUseChoice(HostedChoice, kw_only=True, tag="computer_use"):
    """A use of the computer."""


class ComputerUsePreviewChoice(HostedChoice, kw_only=True, tag="computer_use_preview"):
    """A use of the computer, as models of the preview know it."""


class ImageGenerationChoice(HostedChoice, kw_only=True, tag="image_generation"):
    """An image."""


class CodeInterpreterChoice(HostedChoice, kw_only=True, tag="code_interpreter"):
    """A run of code."""


ToolChoiceMode = Literal["none", "auto", "required"]
ToolChoice = (
    ToolChoiceMode
    | AllowedToolsChoice
    | FileSearchChoice
    | WebSearchPreviewChoice
    | ComputerChoice
    | ComputerUsePreviewChoice
    | ComputerUseChoice
    | WebSearchPreview20250311Choice
    | ImageGenerationChoice
    | CodeInterpreterChoice
    | FunctionChoice
    | McpChoice
    | CustomChoice
    | ProgrammaticChoice
    | ApplyPatchChoice
    | ShellChoice
)
