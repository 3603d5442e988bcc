"""What a client calls its conversation, where it does so in a header."""

from starlette.datastructures import Headers
from starlette.types import Scope

SESSION_HEADERS = ("thread-id", "session-id", "session_id", "x-session-id", "x-claude-code-session-id", "x-openwebui-chat-id")
"""The headers: three of Codex, the narrowest first, then those of several gateways, of Claude Code, and of Open WebUI."""

MAX_SESSION_ID_CHARACTERS = 256


def session_id_of(scope: Scope) -> str:
    """The name; empty if there is none."""
    headers = Headers(scope=scope)
    return next((value[:MAX_SESSION_ID_CHARACTERS] for name in SESSION_HEADERS if (value := headers.get(name))), "")
