"""What a client calls its conversation, where it does so in a header, and what says that requests begin alike."""

from starlette.types import Scope

from antiphon.server.http.headers import request_headers

SESSION_HEADERS = ("thread-id", "session-id", "session_id", "x-session-id", "x-claude-code-session-id", "x-openwebui-chat-id")
"""The headers: three of Codex, the narrowest first, then those of several gateways, of Claude Code, and of Open WebUI."""

MAX_SESSION_ID_CHARACTERS = 256


def session_id_of(scope: Scope) -> str:
    """What the client calls its conversation; empty if it doesn't say."""
    headers = request_headers(scope)
    if headers.is_disjoint(SESSION_HEADERS):  # as with most requests
        return ""
    return next((value[:MAX_SESSION_ID_CHARACTERS] for name in SESSION_HEADERS if (value := headers.get(name))), "")


def make_cache_key(session_id: str, prompt_cache_key: str | None = None, conversation_id: str | None = None) -> str:
    """
    The `cache_key` of an engine's settings; empty where nothing says what belongs together. Then the beginning of the
    conversation does, of which the engine makes its own key.
    """
    if prompt_cache_key:
        return f"prompt:{prompt_cache_key}"
    if conversation_id is not None:
        return f"conversation:{conversation_id}"
    return f"session:{session_id}" if session_id else ""
