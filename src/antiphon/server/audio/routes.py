"""
`POST /v1/audio/transcriptions` and `POST /v1/audio/speech`, with the transcriber and the voice of the server.

There is one of each, so any model name of OpenAI's means it; see `docs/reference/audio-api.md`.
"""

from antiphon.runtime.service import Service
from antiphon.server.audio import speech, transcriptions
from antiphon.server.http.auth import GuardedRoute, guarded_routes


def routes(service: Service) -> list[GuardedRoute]:
    """All routes under `/v1/audio`."""
    transcription, synthesis = transcriptions.TranscriptionEndpoint(service), speech.SpeechEndpoint(service)
    return guarded_routes(
        service,
        [
            ("POST", "/v1/audio/transcriptions", transcription, "audio", transcriptions.OPERATION),
            ("POST", "/v1/audio/speech", synthesis, "audio", speech.OPERATION),
        ],
    )
