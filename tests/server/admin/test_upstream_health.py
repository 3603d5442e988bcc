"""What the server tells of the servers behind it, and gives them: their health in `/metrics`, their models, what it fetches for them."""

import contextlib
import http.server
import json
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.server.processes.run import background_server
from support.server.scripted_server import SCRIPT, configured


class Upstream(http.server.ThreadingHTTPServer):
    """A chat-completions server that is well, or answers everything with 503."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answering)
        self.is_well = True
        self.asked = []
        self.models = ["mock-1", "mock-2", "other"]
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/cat.png":
            self.tell(200, "image/png", "\x89PNG\r\n\x1a\n")
        elif self.server.models is None:
            self.tell(404, "text/plain", "no such page")
        else:
            self.tell(200, "application/json", json.dumps({"data": [{"id": id, "owned_by": "vllm"} for id in self.server.models]}))

    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": "well"}, "finish_reason": "stop"}]})
        if self.server.is_well:
            self.tell(200, "text/event-stream", f"data: {chunk}\n\ndata: [DONE]\n\n")
        else:
            self.tell(503, "application/json", '{"error":{"message":"out of order"}}')

    def tell(self, status, kind, text):
        self.send_response(status)
        self.send_header("content-type", kind)
        body = text.encode("latin-1")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def upstream():
    with contextlib.closing(Upstream()) as server:
        server.close = server.server_close
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def before(tmp_path, upstream, *, settings=None, **options):
    model = {"engine": "chat", "base_url": upstream.url, "quirks": "generic", "retries": 0, **options}
    with background_server(configured(tmp_path, {"mock-*": model, "parrot": {"engine": "scripted", **SCRIPT}}, **(settings or {}))) as url:
        yield url


def told(url):
    """The samples about upstreams, by their name and labels."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples if "upstream" in one.name}


def status_of(url, model="mock-1", said="How are you?"):
    body = json.dumps({"model": model, "input": said}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/responses", body, {"content-type": "application/json"})) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_an_upstreams_health_is_told_from_its_fall_to_its_recovery(tmp_path, upstream):
    with before(tmp_path, upstream, failures=2, rest_s=0.2) as url:
        assert told(url)["antiphon_upstream_state", "closed", "mock-*"] == 1
        assert status_of(url) == 200
        upstream.is_well = False
        assert [status_of(url) for _ in range(3)] == [503] * 3
        counts = told(url)
        assert counts["antiphon_upstream_state", "open", "mock-*"] == 1
        assert counts["antiphon_upstream_failures_total", "503", "mock-*"] == 2
        assert counts["antiphon_upstream_failures_total", "circuit_open", "mock-*"] >= 1
        upstream.is_well = True
        assert any(status_of(url) == 200 for _ in range(10_000)), "it is tried again after its rest"
        counts = told(url)
        assert counts["antiphon_upstream_state", "closed", "mock-*"] == 1
        assert {key for key in counts if key[0] == "antiphon_upstream_state"} == {("antiphon_upstream_state", "closed", "mock-*")}


def test_an_upstream_that_fails_its_trial_is_left_alone_again(tmp_path, upstream):
    upstream.is_well = False
    with before(tmp_path, upstream, failures=1, rest_s=0.05) as url:
        failures = ("antiphon_upstream_failures_total", "503", "mock-*")
        assert any(status_of(url) and told(url)[failures] >= 3 for _ in range(10_000))
        assert told(url)["antiphon_upstream_state", "open", "mock-*"] == 1


def names(url):
    with urllib.request.urlopen(f"{url}/v1/models") as reply:
        return [model["id"] for model in json.load(reply)["data"]]


def test_a_family_is_listed_by_the_names_that_its_upstream_has(tmp_path, upstream):
    with before(tmp_path, upstream) as url:
        assert names(url) == ["mock-1", "mock-2", "parrot"]
        upstream.models.append("mock-3")
        assert "mock-3" not in names(url), "they hold for a while"


def test_a_family_whose_upstream_can_not_be_asked_is_not_listed_but_answers(tmp_path, upstream):
    upstream.models = None
    with before(tmp_path, upstream) as url:
        assert names(url) == ["parrot"]
        assert status_of(url) == 200
        assert status_of(url, "mock-*") == 404


def test_a_picture_is_fetched_from_where_that_is_allowed_alone(tmp_path, upstream):
    part = {"type": "input_image", "image_url": upstream.url.replace("/v1", "/cat.png")}
    said = [{"role": "user", "content": [part]}]
    with before(tmp_path, upstream) as url:
        assert status_of(url, said=said) == 400
    assert upstream.asked == []
    with before(tmp_path, upstream, settings={"server.fetch_networks": ["127.0.0.1/32"]}) as url:
        assert status_of(url, said=said) == 200
    (body,) = upstream.asked
    assert body["messages"][0]["content"][0]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
