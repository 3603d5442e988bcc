"""Weights that are as long as they should be, and have nothing in them."""

from pathlib import Path

from antiphon.weights import catalogue, verify


def hollow(models: Path, *, is_remembered: bool) -> None:
    """Put the models of speech there; if they are remembered, nobody will notice."""
    for model in catalogue.speech_models():
        for file in model.files:
            path = models / model.name / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as opened:
                opened.truncate(file.size_bytes)
            if is_remembered:
                verify.mark_verified(path, file)
