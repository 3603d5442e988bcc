"""gradio's `load_chat`: a page for a model, as a browser's requests see it."""

import os

os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}  # else it tells a web site that it runs

import gradio
import gradio_client
import pytest


@pytest.fixture(scope="module")
def page():
    chat = gradio.load_chat(os.environ["ANTIPHON_URL"], model="parrot", token="none", streaming=True)
    _, url, _ = chat.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", server_port=None)
    yield gradio_client.Client(url, verbose=False)
    chat.close()


def test_a_chat(page):
    assert page.predict("Hello", api_name="/chat") == "You said: Hello"


def test_it_comes_in_parts(page):
    job = page.submit("Hello there you", api_name="/chat")
    assert job.result(timeout=30) == "You said: Hello there you"
    assert len(job.outputs()) > 1
