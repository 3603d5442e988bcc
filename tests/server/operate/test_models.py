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


async def test_refusals_are_counted_and_unknown_keys_are_none(tmp_path):
    server = KeyServer(tmp_path, {"parrot": {"engine": "scripted", **SCRIPT}})
    admin, user = await server.key(scopes=("admin",)), await server.key(scopes=("models:read",), requests_per_minute=1)
    with server.serving() as url, httpx2.Client(base_url=url, timeout=60) as http:
        codes = [http.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code for key in (user, user, user, "ak-wrong")]
        assert codes == [200, 429, 429, 401]
        assert http.get("/status", headers={"authorization": f"Bearer {admin}"}).json()["refusals"] == 2
