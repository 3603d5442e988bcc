"""By which names the ear and the voice of a server are asked for."""

from antiphon.errors import model_not_found

HEARING = (
    "whisper-1",
    "gpt-transcribe",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
)
"""Models that clients ask for when they want the usual one to write down what is said."""

SPEAKING = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
"""Likewise to speak."""


def check(asked: str, own: str, usual: tuple[str, ...]) -> None:
    """
    Refuse names that nobody goes by.

    Args:
        own: the name in the configuration.

    Raises:
        ClientMistake: it is one.
    """
    if asked != own and asked not in usual:
        raise model_not_found(asked, (own, *usual))
