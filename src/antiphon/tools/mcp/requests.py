"""The MCP servers that a request names: checked, and with what it takes to reach each."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.config.tools.mcp import MAX_LABEL_LENGTH, McpServerSettings, is_header, is_server_url
from antiphon.errors import (
    ClientError,
    ServerError,
    did_you_mean,
    shorten,
    too_long,
    too_many_properties,
    unsupported_parameter,
)
from antiphon.tools.mcp.dialing import CommandTarget, HttpTarget, Target
from antiphon.tools.mcp.server import LocalServer, ToolServer
from antiphon.wire.responses.tools import McpTool

MAX_SERVERS = 32
"""The most servers in one request: all of them are asked at the same time."""

MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 << 10
"""The most of all headers of a server together."""

_RESERVED_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of the connection and of the protocol, which requests may not set."""


class OwnServers:
    """
    The operator's servers, by label.

    Args:
        secrets: values of environment variables.
        functions: servers in this process.

    Raises:
        ServerError: a key's variable is not set, or two servers have one label.
    """

    def __init__(self, settings: Sequence[McpServerSettings], secrets: Mapping[str, str], functions: Mapping[str, LocalServer]) -> None:
        self._functions = functions
        self._settings = {entry.label: entry for entry in settings}
        self._targets = {entry.label: _own_target(entry, secrets) for entry in settings}
        if labels := sorted(functions.keys() & self._settings.keys()):
            raise ServerError(f"Both [[tools.mcp]] and [[tools.functions]] have the label '{labels[0]}'.")

    async def close(self) -> None:
        """End what runs in processes of this server's; idempotent."""
        for server in self._functions.values():
            await server.close()

    def function_server(self, label: str) -> ToolServer | None:
        """The server in this process that has the label."""
        return self._functions.get(label)

    def settings(self, label: str) -> McpServerSettings | None:
        """The settings of the label's server; None for functions, and for a label that is not known."""
        return self._settings.get(label)

    def target(self, label: str) -> Target | None:
        """How to reach the label's server; None for functions, and for a label that is not known."""
        return self._targets.get(label)

    @property
    def labels(self) -> Sequence[str]:
        """Labels of servers and functions, for suggestions in errors."""
        return [*self._settings, *self._functions]


class ServerRequest(Struct, frozen=True, kw_only=True):
    """
    A server that a request names.

    Attributes:
        tool: as in the request.
        target: where it is; None for one in this process.
        function_server: the one in this process.
        settings: the operator's, of one of theirs.
    """

    tool: McpTool
    target: Target | None = None
    function_server: ToolServer | None = None
    settings: McpServerSettings | None = None

    @property
    def label(self) -> str:
        """The name that the request uses for it; also the namespace of its functions."""
        return self.tool.server_label

    @property
    def allowed_names(self) -> Sequence[str] | None:
        """The only tools that the operator allows; None for all."""
        return self.settings.allowed_tools if self.settings is not None else None

    @property
    def description(self) -> str | None:
        """What the server is for, in the model's prompt: as the request says, or else the operator."""
        own_text = self.settings.description if self.settings is not None else None
        return self.tool.server_description or own_text


def read_requests(tools: Sequence[tuple[str, McpTool]], own_servers: OwnServers) -> list[ServerRequest]:
    """
    The servers that a request names.

    Args:
        tools: each with its path: `tools[3]`.

    Raises:
        ClientError: one of them is wrong.
    """
    if len(tools) > MAX_SERVERS:
        list_path = tools[-1][0].rpartition("[")[0]
        raise ClientError(
            f"Invalid '{list_path}': too many MCP servers. Expected at most {MAX_SERVERS}, but got {len(tools)}.",
            code="invalid_value",
            param=list_path,
        )
    requests: dict[str, ServerRequest] = {}
    for path, tool in tools:
        request = _read_request(path, tool, own_servers)
        if request.label in requests:
            raise ClientError(
                f"Invalid '{path}.server_label': '{request.label}' is another MCP server's label. Labels must be unique in a request.",
                code="invalid_value",
                param=f"{path}.server_label",
            )
        requests[request.label] = request
    return [*requests.values()]


def _read_request(path: str, tool: McpTool, own_servers: OwnServers) -> ServerRequest:
    if len(tool.server_label) > MAX_LABEL_LENGTH:
        raise too_long(f"{path}.server_label", "string", MAX_LABEL_LENGTH, len(tool.server_label))
    # There is no programmatic tool calling here, so nothing could call such a tool.
    if isinstance(tool.allowed_callers, list) and "direct" not in tool.allowed_callers:
        raise unsupported_parameter(f"{path}.allowed_callers", None)
    for name, what in (("connector_id", "Connectors"), ("tunnel_id", "Tunnels")):
        if getattr(tool, name):
            raise ClientError(
                f"Unsupported parameter: '{path}.{name}'. {what} are OpenAI's own. Give an MCP server's address as `server_url`, "
                "or the label alone of one that this server's operator has set up.",
                code="unsupported_parameter",
                param=f"{path}.{name}",
            )
    headers = _read_headers(path, tool)
    # A URL wins over an operator's label: the operator's key never goes to an address that a client chose.
    if tool.server_url:
        if not is_server_url(tool.server_url):
            raise ClientError(
                f"Invalid '{path}.server_url'. Expected a URL that begins with http:// or https://, without a user in it.",
                code="invalid_value",
                param=f"{path}.server_url",
            )
        return ServerRequest(tool=tool, target=HttpTarget(url=tool.server_url, headers=headers))
    return _read_own_request(path, tool, headers, own_servers)


def _read_own_request(path: str, tool: McpTool, headers: Mapping[str, str], own_servers: OwnServers) -> ServerRequest:
    label = tool.server_label
    settings, function_server, target = own_servers.settings(label), own_servers.function_server(label), own_servers.target(label)
    if settings is None and function_server is None:
        raise ClientError(
            f"Missing required parameter: '{path}.server_url'. It can be left out for the operator's MCP servers alone, and this server "
            f"has none with the label '{label}'.{did_you_mean(label, own_servers.labels)}",
            code="missing_required_parameter",
            param=f"{path}.server_url",
        )
    # Functions take none either: `settings` is None for them.
    if headers and not (settings is not None and settings.accept_credentials):
        raise ClientError(
            f"The MCP server '{label}' is the operator's, and takes no credentials from requests: leave out `authorization` and `headers`.",
            code="invalid_value",
            param=f"{path}.{'authorization' if tool.authorization else 'headers'}",
        )
    if headers and isinstance(target, HttpTarget):
        # A request may add headers to the operator's, but replace none of them.
        own_names = {name.lower() for name in target.headers}
        extra = {name: value for name, value in headers.items() if name.lower() not in own_names}
        target = HttpTarget(url=target.url, headers={**target.headers, **extra}, is_own=True)
    return ServerRequest(tool=tool, target=target, function_server=function_server, settings=settings)


def _read_headers(path: str, tool: McpTool) -> dict[str, str]:
    """The headers of requests to the server; no error has a value in it, as values are secrets."""
    headers = dict(tool.headers or {})
    if len(headers) > MAX_HEADERS:
        raise too_many_properties(f"{path}.headers", MAX_HEADERS, len(headers))
    for name, value in headers.items():
        problem = None
        if not is_header(name, value):
            problem = "is no HTTP header"
        elif name.lower() in _RESERVED_HEADERS:
            problem = "belongs to the connection, and can't be set"
        elif name.lower() == "authorization" and tool.authorization:
            problem = "is also given by `authorization`; give one of them"
        if problem:
            param = f"{path}.headers"
            raise ClientError(f"Invalid '{param}': '{shorten(name)}' {problem}.", code="invalid_value", param=param)
    if tool.authorization:
        if not is_header("authorization", tool.authorization):
            param = f"{path}.authorization"
            raise ClientError(f"Invalid '{param}': it can't be sent in an HTTP header.", code="invalid_value", param=param)
        headers["authorization"] = f"Bearer {tool.authorization}"
    if (size := sum(len(name) + len(value) for name, value in headers.items())) > MAX_HEADER_BYTES:
        raise too_long(f"{path}.headers", "string", MAX_HEADER_BYTES, size)
    return headers


def _own_target(settings: McpServerSettings, secrets: Mapping[str, str]) -> Target:
    if settings.url is None:
        return CommandTarget(
            label=settings.label, command=settings.command, env=settings.env, folder=settings.folder, processes=settings.processes
        )
    headers = dict(settings.headers)
    if settings.key_env is not None:
        if not (key := secrets.get(settings.key_env, "").strip()):
            raise ServerError(f"The key of the MCP server '{settings.label}' is to be in {settings.key_env}, which is not set.")
        headers["authorization"] = f"Bearer {key}"
    return HttpTarget(url=settings.url, headers=headers, is_own=True)
