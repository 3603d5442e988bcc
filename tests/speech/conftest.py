"""What the tests of speech share: people's voices, and where weights are."""

import os
import wave
from pathlib import Path

import pytest

RECORDINGS = Path(__file__).parent / "recordings"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"


@pytest.fixture(scope="session")
def weights():
    """The folder of all models' weights; for tests that are marked `weights`."""
    return Path(os.environ.get("ANTIPHON_MODELS") or CACHE)


@pytest.fixture(scope="session")
def recording():
    """Gives a recording by its name: s16le mono at 16 kHz."""

    def read(name):
        with wave.open(str(RECORDINGS / f"{name}.wav")) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
            return file.readframes(file.getnframes())

    return read
