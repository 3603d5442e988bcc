"""A client that openapi-python-client makes of the server's `/openapi-3.1.json`."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

URL = os.environ["ANTIPHON_URL"].removesuffix("/v1")
UNREADABLE = {"application/sdp", "application/x-ndjson", "application/x-x509-ca-cert", "application/zip", "*/*", "audio/*"}
"""Types of bodies that the generator has no code for; it says so, and leaves them out."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The client's package, and what the generator said."""
    folder = tmp_path_factory.mktemp("made")
    command = [Path(sys.executable).with_name("openapi-python-client"), "generate", "--url", f"{URL}/openapi-3.1.json"]
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "400"}
    done = subprocess.run(
        [*command, "--meta", "none", "--output-path", folder / "generated"], env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    return importlib.import_module("generated"), done.stdout + done.stderr


def call(name):
    return importlib.import_module(f"generated.api.{name}")


@pytest.fixture
def client(made):
    return made[0].Client(base_url=URL)


def test_only_bodies_of_other_types_are_left_out(made):
    lines = made[1].splitlines()
    left_out = [line for line in lines if "Unable to" in line or "Cannot parse" in line or "Unsupported content" in line]
    assert [line for line in left_out if not any(kind in line for kind in UNREADABLE)] == []
    assert "Endpoint will not be generated" not in made[1]


def test_a_response_is_made_read_and_deleted(made, client):
    models = importlib.import_module("generated.models")
    made_one = call("responses.create_response").sync(client=client, body=models.CreateRequest(model="parrot", input_="Hello"))
    assert made_one.output[0].content[0].text == "You said: Hello"
    assert call("responses.get_response").sync(id=made_one.id, client=client).status == "completed"
    again = models.CreateRequest(model="parrot", input_="again", previous_response_id=made_one.id)
    assert call("responses.create_response").sync(client=client, body=again).previous_response_id == made_one.id
    assert call("responses.delete_response").sync(id=made_one.id, client=client).deleted is True
    assert call("responses.get_response").sync(id=made_one.id, client=client).error.message.endswith("not found.")


def test_models_and_chats(made, client):
    models = importlib.import_module("generated.models")
    assert "parrot" in [each.id for each in call("models.list_models").sync(client=client).data]
    body = models.ChatRequest.from_dict({"model": "parrot", "messages": [{"role": "user", "content": "Hello"}]})
    answer = call("chat.create_chat_completion").sync(client=client, body=body)
    assert answer.choices[0].message.content == "You said: Hello"
