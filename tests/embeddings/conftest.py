"""A made-up model, and the real one's folder."""

import os
from pathlib import Path

import pytest

from antiphon.embeddings.minilm import MiniLM
from support.embeddings.tiny_model import write_tiny_model

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    return MiniLM(tiny_folder)


@pytest.fixture(scope="session")
def real_folder():
    """For tests that are marked `weights`."""
    return Path(os.environ.get("ANTIPHON_MODELS") or CACHE) / "all-minilm-l6-v2"
