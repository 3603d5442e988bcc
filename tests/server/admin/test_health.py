"""Whether a server is ready: it takes whatever it is asked for."""

import json
import os
import time
from pathlib import Path

import pytest

from antiphon.server.processes.run import background_server
from support.server.raw_http import POLL_S, ask, exchange, request, statuses
from support.server.scripted_server import configured

WEIGHTS = Path(
    os.environ.get("ANTIPHON_MODELS") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"
)
MODELS = {"reads": {"engine": "scripted", "abilities": {"audio_in": False, "audio_out": False, "listens": False, "full_duplex": False}}}


def told(url, path):
    """The status and the body of an answer."""
    answer = exchange(url, request(path=path, connection="close"))
    return statuses(answer)[0], json.loads(answer.partition(b"\r\n\r\n")[2])


def test_a_server_without_speech_models_is_ready_at_once(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error"}), is_persistent=True) as url:
        for path in ("/readyz", "/health"):
            assert told(url, path) == (200, {"status": "ok", "warm_up": "off"})
        assert told(url, "/status")[1]["warm_up"] == "off"
        status, body = told(url, "/readyz?wait_for=spech")
        assert (status, body["error"]["param"]) == (400, "wait_for")


@pytest.mark.long
@pytest.mark.weights
def test_a_server_is_ready_at_once_and_tells_who_waits_for_it_when_its_speech_models_have_run(tmp_path):
    config = configured(tmp_path, MODELS, **{"logging.level": "error", "models_dir": str(WEIGHTS)})
    with background_server(config, is_persistent=True) as url:
        assert told(url, "/readyz") == (200, {"status": "ok", "warm_up": "running"})
        assert told(url, "/readyz?wait_for=speech") == (503, {"status": "warming_up", "warm_up": "running"})
        assert told(url, "/livez") == (200, {"status": "ok"})
        closing = ask("reads").replace(b"host: localhost", b"host: localhost\r\nconnection: close")
        assert statuses(exchange(url, closing)) == [200]
        until_s = time.monotonic() + 120
        while told(url, "/status")[1]["warm_up"] == "running":
            assert time.monotonic() < until_s
            time.sleep(POLL_S)
        for path in ("/readyz", "/readyz?wait_for=speech"):
            assert told(url, path) == (200, {"status": "ok", "warm_up": "done"})


@pytest.mark.weights
@pytest.mark.parametrize("warm_up", [True, False])
def test_a_server_may_stop_while_it_loads_and_loads_nothing_where_it_is_told_so(tmp_path, warm_up):
    config = configured(tmp_path, MODELS, **{"logging.level": "error", "models_dir": str(WEIGHTS), "speech.warm_up": warm_up})
    with background_server(config, is_persistent=True) as url:
        assert told(url, "/readyz")[1]["warm_up"] == ("running" if warm_up else "off")
