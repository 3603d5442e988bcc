"""`GET /models/health` and `GET /status`: what failed, what was refused, and how long the first token took."""

import httpx2
import pytest

from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_each_model_has_its_own_answers_errors_and_times(tmp_path):
    slow = {"engine": "scripted", "answers": [{"lines": [{"wait_ms": 80}, {"text": "Late."}]}]}
    models = {"parrot": {"engine": "scripted", **SCRIPT}, "slow": slow}
    with (
        background_server(configured(tmp_path, models, **{"logging.level": "error"})) as url,
        httpx2.Client(base_url=url, timeout=60) as http,
    ):
        for model, text in (("parrot", "hello"), ("parrot", "break midway"), ("slow", "hello")):
            http.post("/v1/responses", json={"model": model, "input": text, "stream": True})
        chat = {"model": "parrot", "messages": [{"role": "user", "content": "hello"}]}
        assert http.post("/v1/chat/completions", json=chat).status_code == 200
        rows = {row["name"]: row for row in http.get("/models/health").json()["models"]}
        assert {name: (row["engine"], row["state"], row["answers"], row["errors"]) for name, row in rows.items()} == {
            "parrot": ("scripted", "ready", 3, 1),
            "slow": ("scripted", "ready", 1, 0),
        }
        assert rows["slow"]["first_token_p50_s"] == rows["slow"]["first_token_p99_s"] > 0.07
        state = http.get("/status").json()
        assert (state["answers"], state["errors"], state["refusals"]) == (4, 1, 0) and state["first_token_p99_s"] >= 0.07


def test_an_answer_counts_for_the_model_that_gave_it_and_for_no_pattern_that_its_name_fits(tmp_path):
    models = {name: {"engine": "scripted", **SCRIPT} for name in ("qwen-*", "qwen-7b", "qwen-7b-*")}
    with (
        background_server(configured(tmp_path, models, **{"logging.level": "error"})) as url,
        httpx2.Client(base_url=url, timeout=60) as http,
    ):
        for model in ("qwen-7b", "qwen-7b-q4", "qwen-7b-q8", "qwen-1b"):
            assert http.post("/v1/responses", json={"model": model, "input": "hello"}).status_code == 200
        rows = {row["name"]: row["answers"] for row in http.get("/models/health").json()["models"]}
        assert rows == {"qwen-*": 1, "qwen-7b": 1, "qwen-7b-*": 2}


def test_the_state_of_a_model_is_not_that_of_another_whose_name_begins_like_its_own(tmp_path):
    closed = {"engine": "chat", "base_url": "http://127.0.0.1:9/v1", "model": "m", "retries": 0}
    models = {"org": {"engine": "scripted", **SCRIPT}, "org/model": closed}
    with (
        background_server(configured(tmp_path, models, **{"logging.level": "error"})) as url,
        httpx2.Client(base_url=url, timeout=60) as http,
    ):

        def states():
            return {row["name"]: row["state"] for row in http.get("/models/health").json()["models"]}

        for _ in range(20):
            http.post("/v1/responses", json={"model": "org/model", "input": "hello"})
        assert states() == {"org": "ready", "org/model": "failing"}


async def test_refusals_are_counted_and_unknown_keys_are_none(tmp_path):
    server = KeyServer(tmp_path, {"parrot": {"engine": "scripted", **SCRIPT}})
    admin, user = await server.key(scopes=("admin",)), await server.key(scopes=("models:read",), requests_per_minute=1)
    with server.serving() as url, httpx2.Client(base_url=url, timeout=60) as http:
        codes = [http.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code for key in (user, user, user, "ak-wrong")]
        assert codes == [200, 429, 429, 401]
        assert http.get("/status", headers={"authorization": f"Bearer {admin}"}).json()["refusals"] == 2
