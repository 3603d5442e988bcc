"""Pictures and documents by URLs that lead inside, over HTTP: refused as the client's mistake, and nobody is reached."""

import contextlib
import json
import socket
import threading

import pytest

from antiphon.server.processes.run import background_server
from support.runtime.hostile_urls import local_urls
from support.server.model_server import playing
from support.server.plain_http import post
from support.server.scripted_server import configured


@pytest.fixture(scope="module")
def inside():
    """A port of this machine, and how often somebody has connected to it."""
    count = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    count.append(connection.close())

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], count
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with playing(lambda _body: []) as (url, asked):
        models = {"m": {"engine": "chat", "base_url": url, "model": "m", "quirks": "vllm", "abilities": {"files": True}}}
        with background_server(configured(tmp_path_factory.mktemp("home"), models, **{"logging.level": "error"})) as base:
            yield base, asked


def image(url):
    return "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}


def document(url):
    return "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": url}]}]}


def chat_image(url):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


def message_image(url):
    source = {"type": "url", "url": url}
    return "/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}


@pytest.mark.parametrize("request_of", [image, document, chat_image, message_image])
def test_no_url_of_a_request_leads_inside(served, inside, request_of):
    base, asked = served
    port, count = inside
    urls = local_urls(port)
    assert len(urls) >= 150
    for url in urls if request_of is image else urls[::5]:
        path, body = request_of(url)
        status, _, answer = post(base, {"model": "m"} | body, path)
        assert status == 400, (url, answer)
        error = json.loads(answer)["error"]
        assert error["type"] == "invalid_request_error" and "127.0.0.1" not in error["message"].replace(url, ""), (url, error)
    # A count of the text's tokens may have been asked for; no model was asked, and no URL was passed on.
    assert not count and "http" not in json.dumps(asked)
