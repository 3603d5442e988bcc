"""The settings `[tools]`."""

from pydantic import BaseModel, Field, field_validator

from antiphon.config.tools.code_interpreter import CodeInterpreterSettings
from antiphon.config.tools.file_search import FileSearchSettings
from antiphon.config.tools.functions import MAX_FUNCTION_FILES, FunctionsEntry, check_labels
from antiphon.config.tools.images import MAX_IMAGE_SERVERS, ImagesEntry
from antiphon.config.tools.mcp import MAX_SERVERS, McpServerSettings
from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.config.tools.web_search import WebSearchSettings
from antiphon.errors import quote_list


class ToolsSettings(BaseModel, frozen=True, extra="forbid"):
    """The tools that the server runs, and their limits."""

    call_s: float = Field(default=120, gt=0, description="Seconds that a call of a tool may take.")
    calls: int = Field(default=128, ge=1, description="The most calls in one response; the model is told when it has made them.")
    turns: int = Field(default=32, ge=1, description="The most times that the model is asked in one response; the last time without tools.")
    parallel: int = Field(default=8, ge=1, description="The most calls of one response that run at once.")
    output_chars: int = Field(default=200_000, ge=1000, description="The most characters of one call's result that the model reads.")
    response_chars: int = Field(
        default=2_000_000, ge=1000, description="The most characters of the results of all calls in one response; then no more are made."
    )
    infer_citations: bool = Field(
        default=True, description="Whether an answer in which the model cites nothing is cited where its words leave no doubt."
    )
    mcp: tuple[McpServerSettings, ...] = Field(
        default=(), max_length=MAX_SERVERS, description="MCP servers of the operator's; a later list replaces an earlier one."
    )
    mcp_list_s: float = Field(default=30, gt=0, description="Seconds within which an MCP server must list its tools.")
    mcp_idle_s: float = Field(default=60, gt=0, description="Seconds after which a session with an MCP server that nobody uses is closed.")
    mcp_answer_kib: int = Field(
        default=1024, ge=16, le=65536, description="The most KiB of an MCP server's answer to a call, or of the list of its tools."
    )
    file_search: FileSearchSettings = FileSearchSettings()
    vector_stores: VectorStoreSettings = VectorStoreSettings()
    web_search: WebSearchSettings | None = Field(default=None, description="Web search; unset: the server has none.")
    code_interpreter: CodeInterpreterSettings = CodeInterpreterSettings()
    functions: tuple[FunctionsEntry, ...] = Field(
        default=(), max_length=MAX_FUNCTION_FILES, description="Your own functions; a later list replaces an earlier one."
    )
    images: tuple[ImagesEntry, ...] = Field(
        default=(), max_length=MAX_IMAGE_SERVERS, description="Servers that make pictures; a later list replaces an earlier one."
    )
    _validate_functions = field_validator("functions")(check_labels)

    @field_validator("mcp")
    @classmethod
    def _validate_unique_labels(cls, servers: tuple[McpServerSettings, ...]) -> tuple[McpServerSettings, ...]:
        labels = [server.label for server in servers]
        if duplicates := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"more than one MCP server has the label {quote_list(duplicates)}")
        return servers
