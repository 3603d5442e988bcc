"""Killed between the end of a response and the delivery of its event, the server delivers it after a restart."""

import openai

from antiphon.runtime.webhooks.signing import new_secret
from support.runtime.webhook_receiver import receiving
from support.server.own_process import serving

SECRET = new_secret()


def test_no_event_is_lost_when_the_server_is_killed(tmp_path):
    with receiving() as hook:
        webhooks = [{"name": "hook", "url": hook.url, "secret": SECRET, "networks": ["127.0.0.0/8"], "timeout_s": 60}]
        settings = {"webhooks": webhooks, "logging.level": "warning"}
        hook.answers.append("hang")
        with serving(tmp_path, **settings) as (process, url):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            ended_id = client.responses.create(model="parrot", input="Hello.", background=True).id
            [lost_request] = hook.wait_for(1)
            with client.responses.create(model="endless", input="Sing.", background=True, stream=True) as stream:
                begun_id = next(event.response.id for event in stream if event.type == "response.created")
                next(event for event in stream if event.type == "response.output_text.delta")
            process.kill()
            process.wait()
        with serving(tmp_path, **settings):
            requests = hook.wait_for(3)
    unwrapped = [client.webhooks.unwrap(request.body, request.headers, secret=SECRET) for request in requests]
    assert {event.data.id: event.type for event in unwrapped} == {ended_id: "response.completed", begun_id: "response.failed"}
    repeats = [request for request in requests if request.headers["webhook-id"] == lost_request.headers["webhook-id"]]
    assert [repeat.body for repeat in repeats] == [lost_request.body] * 2
