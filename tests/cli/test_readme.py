"""The front page's configurations, in front of a server that speaks as vLLM and Ollama do."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
CONFIGURATIONS = dict(re.findall(r"For (vLLM|Ollama):\n\n```toml\n(.*?)^```", README, re.DOTALL | re.MULTILINE))
PORTS = {"vLLM": 8000, "Ollama": 11434}
MODELS = {"vLLM": ("Qwen/Qwen3-8B", "vllm"), "Ollama": ("llama3.2:latest", "library")}


class Upstream(BaseHTTPRequestHandler):
    """Lists one model, and answers with one sentence."""

    protocol_version = "HTTP/1.1"
    model: ClassVar[tuple[str, str]]

    def do_GET(self) -> None:
        name, owner = self.model
        self._send("application/json", {"object": "list", "data": [{"id": name, "object": "model", "created": 1, "owned_by": owner}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        delta = {"role": "assistant", "content": f"{request['model']} heard {request['messages'][-1]['content']}"}
        choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
        self._send("text/event-stream", {"id": "c", "object": "chat.completion.chunk", "created": 1, "choices": [choice]})

    def _send(self, kind: str, message: dict[str, object]) -> None:
        body = json.dumps(message).encode()
        body = b"data: " + body + b"\n\ndata: [DONE]\n\n" if kind == "text/event-stream" else body
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(params=["vLLM", "Ollama"])
def upstream(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A kind of server, and the port where one listens."""
    handler = type("Handler", (Upstream,), {"model": MODELS[request.param]})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield request.param, server.server_port
        server.shutdown()
        thread.join()


def test_the_configuration_of_the_front_page_reaches_the_server_it_names(upstream, antiphon, home, free_port):
    kind, port = upstream
    configuration = CONFIGURATIONS[kind]
    assert f"127.0.0.1:{PORTS[kind]}/v1" in configuration
    (home / "antiphon.toml").write_text(f"server.port = {free_port}\n{configuration.replace(str(PORTS[kind]), str(port))}")
    assert antiphon("config", "check").code == 0
    result = antiphon("ask", "What is a fugue?")
    assert (result.code, result.out) == (0, f"{MODELS[kind][0]} heard What is a fugue?\n")
