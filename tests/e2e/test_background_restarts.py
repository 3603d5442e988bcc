"""What a server was making when it died has failed; what waited is made by the next one."""

import json
import time
import urllib.request

import openai

from support.server.own_process import serving
from support.server.raw_http import POLL_S

PATIENCE_S = 60
MODELS = [
    {"name": "parrot", "engine": "scripted"},
    {"name": "endless", "engine": "scripted", "pace_ms": 10, "answers": [{"lines": [{"text": "la ", "repeat": 100000}]}]},
]
SETTINGS = {"logging.level": "warning", "background.running": 1}


def ended(client, response_id):
    deadline = time.monotonic() + PATIENCE_S
    while (response := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    return response


def begun(client):
    """The id of a response that is being made, and the events that its client got."""
    got = []
    with client.responses.create(model="endless", input="Sing.", background=True, stream=True) as stream:
        for event in stream:
            got.append(event)
            if len(got) == 20:
                return got[0].response.id, got


def test_a_killed_server_leaves_failures_and_its_successor_makes_what_waited(tmp_path):
    with serving(tmp_path, MODELS, **SETTINGS) as (process, url), openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        running, got = begun(client)
        waiting = client.responses.create(model="parrot", input="Hi", background=True, stream=True).__next__().response
        process.kill()
        process.wait()
    with serving(tmp_path, MODELS, **SETTINGS) as (_, url), openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        failed = ended(client, running)
        assert (failed.status, failed.error.code) == ("failed", "server_error")
        body = urllib.request.urlopen(f"{url}/v1/responses/{running}?stream=true", timeout=PATIENCE_S).read().decode()
        events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events[:20]] == [event.type for event in got]
        assert [event["type"] for event in events[-3:]] == ["response.output_item.done", "error", "response.failed"]
        [message] = failed.output
        sung = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        assert (message.status, message.content[0].text) == ("incomplete", sung)
        done = ended(client, waiting.id)
        assert (done.status, done.output_text, done.created_at) == ("completed", "Hi", waiting.created_at)
        numbers = [event.sequence_number for event in client.responses.retrieve(waiting.id, stream=True)]
        assert numbers == list(range(len(numbers)))


def test_what_waited_with_large_files_is_made_though_it_exceeds_a_keys_memory(tmp_path):
    with serving(tmp_path, MODELS, **SETTINGS) as (process, url), openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        begun(client)
        content = [{"type": "input_file", "file_id": client.files.create(file=("a.txt", b"x" * (19 << 20)), purpose="user_data").id}]
        singing = client.responses.create(model="endless", input="Sing.", background=True).id
        reading = {"model": "parrot", "input": [{"role": "user", "content": content}], "background": True, "max_output_tokens": 16}
        waiting = [client.responses.create(**reading).id for _ in range(3)]
        process.kill()
        process.wait()
    limits = {"server.bodies_per_key_mib": 32, "server.bodies_mib": 32}  # as if they had waited in several processes
    with serving(tmp_path, MODELS, **SETTINGS, **limits) as (_, url), openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        deadline = time.monotonic() + PATIENCE_S
        while client.responses.retrieve(singing).status == "queued":
            assert time.monotonic() < deadline
            time.sleep(POLL_S)
        client.responses.cancel(singing)
        assert [ended(client, response_id).error for response_id in waiting] == [None] * 3


def test_a_stopped_server_ends_what_it_makes_with_the_reason(tmp_path):
    with serving(tmp_path, MODELS, drain_s=0, **SETTINGS) as (process, url), openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        running, _ = begun(client)
        process.terminate()
        process.wait(PATIENCE_S)
    with serving(tmp_path, MODELS, **SETTINGS) as (_, url), openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        failed = client.responses.retrieve(running)
        assert failed.status == "failed" and "shutting down" in failed.error.message


def test_who_follows_what_a_stopped_server_makes_gets_its_end_and_the_reason(tmp_path):
    with serving(tmp_path, MODELS, drain_s=0, **SETTINGS) as (process, url), openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        running, _ = begun(client)
        with urllib.request.urlopen(f"{url}/v1/responses/{running}?stream=true", timeout=PATIENCE_S) as stream:
            stream.readline()
            process.terminate()
            body = stream.read().decode()
        process.wait(PATIENCE_S)
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["code"] == "server_shutting_down"
