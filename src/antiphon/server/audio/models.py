"""By which names the ear and the voice of a server are asked for."""

from antiphon.errors import model_not_found

TRANSCRIPTION_MODELS = (
    "whisper-1",
    "gpt-transcribe",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
)
"""Models that clients ask for when they want the usual one to write down what is said."""

SPEECH_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
"""Likewise to speak."""


def check_model(name: str, own_name: str, aliases: tuple[str, ...]) -> None:
    """
    Refuse names that nobody goes by.

    Args:
        own: the name in the configuration.

    Raises:
        ClientError: it is one.
    """
    if name != own_name and name not in aliases:
        raise model_not_found(name, (own_name, *aliases))
