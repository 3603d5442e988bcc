"""
`POST /v1/audio/transcriptions` and `POST /v1/audio/speech`, with the transcriber and the voice of the server.

There is one of each, so any model name of OpenAI's means it; see `docs/reference/audio-api.md`.
"""

from starlette.routing import Route
from starlette.types import ASGIApp

from antiphon.runtime.service import Service
from antiphon.server.audio.speech import SpeechEndpoint
from antiphon.server.audio.transcriptions import TranscriptionEndpoint
from antiphon.server.http.auth import GuardedRoute


def routes(service: Service) -> list[Route]:
    """All routes under `/v1/audio`."""
    endpoints: dict[str, ASGIApp] = {
        "/v1/audio/transcriptions": TranscriptionEndpoint(service),
        "/v1/audio/speech": SpeechEndpoint(service),
    }
    return [GuardedRoute(path, endpoint, service=service, access="audio", methods=["POST"]) for path, endpoint in endpoints.items()]
