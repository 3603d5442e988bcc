"""gradio's `load_chat`: a page for a model, as a browser's requests see it."""

import os

os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}  # else it tells a web site that it runs

import gradio
import gradio_client
import pytest


@pytest.fixture(scope="module")
def address():
    chat = gradio.load_chat(os.environ["ANTIPHON_URL"], model="parrot", token="none", streaming=True)
    _, url, _ = chat.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1")
    yield url
    chat.close()


@pytest.fixture
def page(address):
    return gradio_client.Client(address, verbose=False)  # each has a conversation of its own


def test_a_chat(page):
    assert page.predict({"text": "Hello", "files": []}, api_name="/open_api_stream") == "You said: Hello"


def test_it_comes_in_parts(page):
    job = page.submit({"text": "Hello there you", "files": []}, api_name="/open_api_stream")
    assert job.result(timeout=30) == "You said: Hello there you"
    assert len(job.outputs()) > 1
