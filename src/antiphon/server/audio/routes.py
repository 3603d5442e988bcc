"""
Speech over HTTP: `POST /v1/audio/transcriptions` and `POST /v1/audio/speech`, by the ears and the voice of the server.

There is one of each, so that a client's name for it only has to be one that clients use; see
`docs/reference/audio-api.md`.
"""

from starlette.routing import Route
from starlette.types import ASGIApp

from antiphon.runtime.service import Service
from antiphon.server.audio.speech import SpeechEndpoint
from antiphon.server.audio.transcriptions import TranscriptionEndpoint
from antiphon.server.http.auth import GuardedRoute


def routes(service: Service) -> list[Route]:
    """Everything under `/v1/audio`."""
    endpoints: dict[str, ASGIApp] = {
        "/v1/audio/transcriptions": TranscriptionEndpoint(service),
        "/v1/audio/speech": SpeechEndpoint(service),
    }
    return [GuardedRoute(path, endpoint, service=service, access="audio", methods=["POST"]) for path, endpoint in endpoints.items()]
