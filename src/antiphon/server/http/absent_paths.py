"""Paths of other servers' APIs that this one does not have, and those that clients ask for by mistake: what to use instead."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from antiphon.errors import ClientError, shorten


class AbsentPath(NamedTuple):
    """
    A path that this server does not have, with all paths below it.

    Attributes:
        prefix: `*` stands for one segment.
        advice: what to use instead.
        methods: the only ones for which it is absent; empty for all.
    """

    prefix: str
    advice: str
    methods: Sequence[str] = ()


ABSENT_PATHS = (
    # Anthropic
    AbsentPath("/v1/messages/batches", "Batches are not offered: send each request to POST /v1/messages."),
    AbsentPath("/v1/complete", "Text completions are not offered: use POST /v1/messages.", ("POST",)),
    AbsentPath("/v1/agents", "Managed agents are not offered: use POST /v1/messages with tools that your program runs."),
    AbsentPath("/v1/environments", "Managed agents are not offered: use POST /v1/messages with tools that your program runs."),
    AbsentPath("/v1/skills", "Skills are not offered: put their instructions into `system` or `instructions`."),
    AbsentPath("/v1/organizations", "Keys and their limits are managed with `antiphon keys`, by the operator of this server."),
    # OpenAI
    AbsentPath("/v1/assistants", "Assistants are not offered: use POST /v1/responses, with a stored prompt for the instructions."),
    AbsentPath("/v1/threads", "Threads are not offered: use POST /v1/conversations, and name the conversation in POST /v1/responses."),
    AbsentPath(
        "/v1/batches", "Batches are not offered: send each request to POST /v1/responses, with `background` if nobody waits for it."
    ),
    AbsentPath("/v1/moderations", "Moderation is not offered: ask a model with POST /v1/responses, and `text.format` for the verdict."),
    AbsentPath("/v1/images", "Images are not generated here; POST /v1/responses reads them as `input_image`."),
    AbsentPath("/v1/videos", "Videos are not generated here."),
    AbsentPath("/v1/fine_tuning", "Models are not trained here: train it elsewhere, and add it to the server's configuration."),
    AbsentPath("/v1/fine-tunes", "Models are not trained here: train it elsewhere, and add it to the server's configuration."),
    AbsentPath(
        "/v1/audio/translations",
        "Translation of audio is not offered: use POST /v1/audio/transcriptions, and have the text translated with POST /v1/responses.",
    ),
    AbsentPath("/v1/audio/models", "The models are those of GET /v1/models.", ("GET",)),
    AbsentPath("/v1/audio/voices", "Voices are not made here: POST /v1/audio/speech takes those of the server's configuration."),
    AbsentPath("/v1/evals", "Evaluations are not offered."),
    AbsentPath("/v1/uploads", "Uploads in parts are not offered: use POST /v1/files."),
    AbsentPath("/v1/chatkit", "ChatKit is not offered: use POST /v1/responses."),
    AbsentPath("/v1/edits", "Edits are not offered: use POST /v1/responses."),
    AbsentPath("/v1/engines", "Engines are not listed: use GET /v1/models."),
    AbsentPath("/v1/organization", "Keys and their limits are managed with `antiphon keys`, by the operator of this server."),
    AbsentPath("/v1/projects", "Keys and their limits are managed with `antiphon keys`, by the operator of this server."),
    AbsentPath("/v1/models/*", "Models are not deleted here: take it out of the server's configuration.", ("DELETE",)),
    # Others
    AbsentPath("/v1beta", "Google's API is not offered: use POST /v1/chat/completions or POST /v1/responses."),
    *(AbsentPath(path, "Texts are not ranked here: compare vectors of POST /v1/embeddings.") for path in ("/v1/rerank", "/rerank")),
    # Ollama
    *(
        AbsentPath(f"/api/{name}", "Ollama's API is not offered: use POST /v1/chat/completions or POST /v1/responses.")
        for name in ("chat", "generate", "tags", "show", "embed", "embeddings", "ps", "version", "pull")
    ),
)
"""The first one that fits counts."""

ROOTS = ("/", "/v1", "/v1/")
"""Paths that a person opens to see what is there."""

MAX_SEGMENTS = 12
"""The longest path in which one of this server's is looked for: each suffix of it is compared with all routes."""

_PATTERNS = [(re.compile(re.escape(path.prefix).replace(r"\*", "[^/]+") + "(/.*)?"), path) for path in ABSENT_PATHS]


def is_messages_path(path: str) -> bool:
    """Whether a path without a route belongs to Anthropic's API."""
    return "/messages" in path and "/threads/" not in path


def absent_path_error(scope: Scope, routes: Iterable[BaseRoute], *, has_other_methods: bool) -> ClientError | None:
    """
    The error for a path that this server does not have; None if there is nothing to say about it.

    Args:
        routes: all that the server has.
        has_other_methods: whether the path is there, with other methods.
    """
    method, path = scope["method"], scope["path"]
    advice = _known_advice(method, path, has_other_methods=has_other_methods)
    if path in ROOTS and not has_other_methods:
        advice = "All that is there is at /docs."
    if advice is None and not has_other_methods:
        advice = _nearby_advice(scope, tuple(routes))
    if advice is None:
        return None
    return ClientError(f"Invalid URL ({method} {shorten(path)}). {advice}", status=404, code="unknown_url")


def _known_advice(method: str, path: str, *, has_other_methods: bool) -> str | None:
    for pattern, absent in _PATTERNS:
        if pattern.fullmatch(path) and (method in absent.methods if absent.methods else not has_other_methods):
            return absent.advice
    return None


def _nearby_advice(scope: Scope, routes: Sequence[BaseRoute]) -> str | None:
    """The path that was meant, where it was put behind a wrong base URL."""
    path: str = scope["path"]
    for candidate in _candidates(path):
        if candidate == path or not _is_there(candidate, scope, routes):
            continue
        question = f"Did you mean '{shorten(candidate)}'?"
        if candidate == path.rstrip("/"):
            return question
        if is_messages_path(candidate):
            return f"{question} The base URL of Anthropic's clients is that of the server, without '/v1'."
        return f"{question} The base URL of a client is that of the server with '/v1' at its end."
    return None


def _candidates(path: str) -> Iterator[str]:
    segments = [segment for segment in path.split("/") if segment]
    if not segments or len(segments) > MAX_SEGMENTS:
        return
    # With doubled slashes, or one at its end.
    yield "/" + "/".join(segments)
    starts = [index for index, segment in enumerate(segments) if segment == "v1"]
    # A base URL with `v1` before a path with `v1` makes `/v1/v1/…`, so the last one counts.
    rest = segments[starts[-1] + 1 :] if starts else segments
    yield from (f"/v1/{'/'.join(rest[index:])}" for index in range(len(rest)))


def _is_there(path: str, scope: Scope, routes: Iterable[BaseRoute]) -> bool:
    request = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
    return any(getattr(route, "path", "/") != "/" and route.matches(request)[0] is not Match.NONE for route in routes)
