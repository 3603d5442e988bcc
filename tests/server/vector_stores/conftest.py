"""A server with a tiny embedding model, and its official client."""

import openai
import pytest

from antiphon.config.routing import EMBEDDING_MODEL
from antiphon.server.processes.run import background_server
from support.embeddings.tiny_model import write_tiny_model
from support.server.scripted_server import configured

MODELS = {"parrot": {"engine": "scripted"}}


@pytest.fixture(scope="package")
def models_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_tiny_model(folder / EMBEDDING_MODEL)
    return folder


@pytest.fixture(scope="package")
def url(tmp_path_factory, models_dir):
    settings = {"models_dir": str(models_dir), "logging.level": "error", "tools.vector_stores.store_files": 6}
    with background_server(configured(tmp_path_factory.mktemp("home"), MODELS, **settings)) as url:
        yield url


@pytest.fixture(scope="package")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def upload(client):
    """Uploads a text; returns the file's id."""

    def upload(text, name="a.txt"):
        return client.files.create(file=(name, text.encode()), purpose="assistants").id

    return upload
