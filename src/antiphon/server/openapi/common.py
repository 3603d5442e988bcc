"""What routes share in `/openapi.json`: tags, errors and headers."""

from collections.abc import Mapping

import msgspec

from antiphon.server.http.auth import Access
from antiphon.server.http.operation import Header, Tag
from antiphon.server.transport.limits import HEAD_LIMIT_BYTES

TAGS: Mapping[Tag, str] = {
    "Realtime": "Spoken and written conversations over WebSocket or WebRTC, and the secrets with which browsers open them.",
    "Responses": "Responses of models, whole or as streams of events, and those that are stored.",
    "Chat": "Chat completions of models, whole or as streams of chunks.",
    "Embeddings": "Vectors of texts, for search and comparison.",
    "Messages": "Messages of models, as Anthropic's API has them.",
    "Conversations": "Conversations, which responses read and add to.",
    "Containers": "Containers in which models run code, and their files.",
    "Files": "Uploaded files, which requests can refer to.",
    "Vector stores": "Collections of files that can be searched by meaning and by words.",
    "Audio": "Transcription of audio files, and speech synthesis.",
    "Sessions": "Recordings of your sessions.",
    "MiniCPM-o": "Presets and voices, which MiniCPM-o's pages and clients load before they open a session.",
    "Queue": "The clients that wait for a worker, and the workers.",
    "Models": "The models of this server.",
    "Console": "The page in the browser, and its keys.",
    "Server": "Health, version, metrics and documentation of the server, and the link of its workers.",
}

KEYLESS = ("probe", "public")
"""Access without a key."""


class ErrorDetails(msgspec.Struct):
    """An error; `param` is the path of the field at fault, `code` identifies the error for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    """The body of every error response."""

    error: ErrorDetails


def common_errors(access: Access) -> dict[int, str]:
    """The errors that every route with this access has."""
    errors = {
        400: "The request is not valid HTTP.",
        408: "The request did not arrive in time.",
        429: "A limit of the key is reached, or there are too many connections from the client's address.",
        431: f"The request's head is over {HEAD_LIMIT_BYTES >> 10} KiB.",
        500: "The server has a bug, or its store can't be used.",
        503: "There are too many connections.",
    }
    # Probes are answered under any host name and to any page.
    if access != "probe":
        errors[403] = "The key lacks the scope, or the request comes from a page of another site."
        errors[421] = "The request is for another host."
    if access not in KEYLESS:
        errors[401] = "The key is missing or wrong."
    return errors


_COUNT = {"type": "integer", "minimum": 0}
_DURATION = {"type": "string", "examples": ["1.5s", "2m30s"]}

_EVERY_HEADER = {
    "x-request-id": Header(
        "The request's id, which is in the server's log.", {"type": "string", "pattern": "^req_[0-9a-f]{48}$"}, is_required=True
    ),
    "openai-processing-ms": Header("Milliseconds until the response began.", _COUNT),
    "openai-version": Header("The version of the API.", {"type": "string"}),
    "cross-origin-resource-policy": Header("Keeps pages of other origins from showing it as a picture or sound.", {"const": "same-origin"}),
}
_RETRY = {
    "retry-after": Header("Seconds after which to try again.", {"type": "integer", "minimum": 1}),
    "x-should-retry": Header("`false` where that is more than a minute.", {"const": "false"}),
}
_CHALLENGE = {"www-authenticate": Header("How to send a key.", {"const": "Bearer"}, is_required=True)}
_RATE_LIMITS = {
    "x-ratelimit-limit-requests": Header("Requests per minute that the key allows.", _COUNT),
    "x-ratelimit-remaining-requests": Header("How many of them are left.", _COUNT),
    "x-ratelimit-reset-requests": Header("The time until all of them are available.", _DURATION),
    "x-ratelimit-limit-tokens": Header("Tokens per minute that the key allows.", _COUNT),
    "x-ratelimit-remaining-tokens": Header("How many of them are left.", _COUNT),
    "x-ratelimit-reset-tokens": Header("The time until all of them are available.", _DURATION),
}
"""Sent for keys with limits."""

COMMON_HEADERS = _EVERY_HEADER | _RETRY | _CHALLENGE | _RATE_LIMITS


def common_headers(access: Access, status: int) -> Mapping[str, Header]:
    """The headers that every response with this status has."""
    headers = dict(_EVERY_HEADER)
    if status in (429, 503):
        headers |= _RETRY
    if status == 401:
        headers |= _CHALLENGE
    if access not in KEYLESS:
        headers |= _RATE_LIMITS
    return headers
