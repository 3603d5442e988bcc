"""The real embedding model's folder."""

import os
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"


@pytest.fixture(scope="session")
def real_folder():
    """For tests that are marked `weights`."""
    return Path(os.environ.get("ANTIPHON_MODELS") or CACHE) / "all-minilm-l6-v2"
