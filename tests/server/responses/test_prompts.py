"""Responses with stored prompts: the model's input, the client's view, and refusals."""

import asyncio
import json
from typing import NamedTuple

import openai
import pytest
from openai.types.responses import Response

from antiphon.records import PromptRecord
from support.server.key_server import KeyServer
from support.server.model_server import playing
from support.server.responses_peer import connected

PIXEL = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": False}
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
PROMPTS = [
    {"id": "pmpt_greeter", "instructions": "Greet {{ name }} in {{language}}.", "variables": {"language": "Latin"}},
    {"id": "pmpt_greeter", "version": 2, "instructions": "Greet {{name}}. {{unclosed {{3}} {{}}"},
    {
        "id": "pmpt_shots",
        "model": "chat",
        "instructions": "You know {{city}}.",
        "messages": [
            {"role": "user", "content": "Where is {{city}}?"},
            {"role": "assistant", "content": "{{city}} is {{where}}."},
            {"role": "user", "content": [{"type": "input_text", "text": "And {{thing}}, {{thing}}?"}]},
        ],
    },
    {
        "id": "pmpt_strict",
        "instructions": "Add.",
        "temperature": 0.3,
        "top_p": 0.5,
        "max_output_tokens": 99,
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "text": {"format": SCHEMA, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
    },
    {"id": "pmpt_twice", "version": 1, "default": True, "instructions": "One."},
    {"id": "pmpt_twice", "version": 7, "instructions": "Seven."},
]


def answer(_body):
    return [
        {"choices": [{"index": 0, "delta": {"content": "Salve."}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
    ]


class Setting(NamedTuple):
    """A server whose keys `ada` and `bob` are of two tenants, and what the model behind it was asked."""

    url: str
    keys: dict
    clients: dict
    asked: list

    def client(self, tenant="ada"):
        return self.clients[tenant]

    def messages(self):
        """What the model was asked last."""
        return [(message["role"], message["content"]) for message in self.asked[-1]["messages"]]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    with playing(answer) as (upstream, asked):
        models = {"chat": {"engine": "chat", "base_url": upstream, "quirks": "generic", "retries": 0, "always_stream": True}}
        models["parrot"] = {"engine": "scripted"}
        server = KeyServer(tmp_path_factory.mktemp("home"), models, prompts=PROMPTS)
        keys = {tenant: asyncio.run(server.key(tenant=tenant)) for tenant in ("ada", "bob")}

        async def add(store):
            record = PromptRecord(id="pmpt_ada", tenant="ada", created_at=1)
            await store.prompts.add(record, b'{"instructions":"First for {{who}}."}')
            await store.prompts.add_version("ada", "pmpt_ada", b'{"instructions":"Second."}', at=2, is_default=True)
            await store.prompts.add(PromptRecord(id="pmpt_twice", tenant="bob", created_at=1), b'{"instructions":"Bob\'s."}')
            await store.prompts.add(PromptRecord(id="pmpt_later", tenant="ada", created_at=1), b'{"instructions":"A","invented":1}')

        with server.serving() as url:  # the store is used beside the server
            asyncio.run(server.with_store(add))
            clients = {tenant: openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) for tenant, key in keys.items()}
            yield Setting(url, keys, clients, asked)
            for client in clients.values():
                client.close()


def shown(response):
    """The roles and contents of a response's instructions."""
    return [
        (item.role, item.content if isinstance(item.content, str) else [part.to_dict() for part in item.content])
        for item in response.instructions
    ]


def text(words, kind="input_text"):
    return {"type": kind, "text": words}


def test_a_prompt_is_all_that_a_request_needs(setting):
    variables = {"city": "Rome", "where": "in Italy", "thing": "Ostia"}
    response = setting.client().responses.create(prompt={"id": "pmpt_shots", "variables": variables})
    assert response.output_text == "Salve." and response.model == "chat"
    assert setting.messages() == [
        ("system", "You know Rome."),
        ("user", "Where is Rome?"),
        ("assistant", "Rome is in Italy."),
        ("user", "And Ostia, Ostia?"),
    ]
    assert response.prompt and response.prompt.to_dict() == {"id": "pmpt_shots", "version": "1", "variables": variables}
    assert shown(response) == [
        ("developer", [text("You know Rome.")]),
        ("user", [text("Where is Rome?")]),
        ("assistant", "Rome is in Italy."),
        ("user", [text("And Ostia, Ostia?")]),
    ]


def test_the_input_follows_the_prompt_and_is_the_only_thing_that_is_stored(setting):
    client = setting.client()
    first = client.responses.create(
        model="chat", input="Hi {{name}}", prompt={"id": "pmpt_greeter", "version": "1", "variables": {"name": "Ada"}}
    )
    assert setting.messages() == [("system", "Greet Ada in Latin."), ("user", "Hi {{name}}")], "the input has no variables"
    assert [item.content[0].text for item in client.responses.input_items.list(first.id)] == ["Hi {{name}}"]
    assert client.responses.retrieve(first.id).prompt == first.prompt
    client.responses.create(model="chat", input="Again", previous_response_id=first.id)
    assert [role for role, _ in setting.messages()] == ["user", "assistant", "user"], "like instructions, it is not inherited"
    client.responses.create(model="chat", input="More", previous_response_id=first.id, prompt={"id": "pmpt_twice"})
    assert setting.messages() == [("system", "One."), ("user", "Hi {{name}}"), ("assistant", "Salve."), ("user", "More")]


def test_a_conversation_gets_the_input_without_the_prompt(setting):
    client = setting.client()
    conversation = client.conversations.create()
    client.responses.create(model="chat", input="Hi", conversation=conversation.id, prompt={"id": "pmpt_twice"})
    items = client.conversations.items.list(conversation.id, order="asc")
    assert [(item.role, item.content[0].text) for item in items] == [("user", "Hi"), ("assistant", "Salve.")]


def test_what_the_request_says_goes_before_what_the_prompt_says(setting):
    client = setting.client()
    response = client.responses.create(model="chat", input="2+2", prompt={"id": "pmpt_strict"})
    assert (response.temperature, response.top_p, response.max_output_tokens, response.tool_choice) == (0.3, 0.5, 99, "required")
    assert response.tools[0].name == "add" and response.parallel_tool_calls is False
    assert (response.text.format.type, response.text.verbosity) == ("json_schema", "low")
    assert (response.reasoning.effort, response.reasoning.summary) == ("low", "auto")
    assert setting.asked[-1]["temperature"] == 0.3 and setting.asked[-1]["tools"][0]["function"]["name"] == "add"
    response = client.responses.create(
        model="chat",
        input="2+2",
        prompt={"id": "pmpt_strict"},
        instructions="Multiply.",
        temperature=0.9,
        tools=[],
        tool_choice="none",
        text={"format": {"type": "text"}},
        reasoning={"effort": "high"},
    )
    assert (response.temperature, response.top_p, response.tools, response.tool_choice) == (0.9, 0.5, [], "none")
    assert (response.text.format.type, response.text.verbosity) == ("text", "low"), "each option of its own"
    assert (response.reasoning.effort, response.reasoning.summary) == ("high", "auto")
    assert setting.messages() == [("system", "Multiply."), ("user", "2+2")]


def test_own_instructions_need_none_of_the_variables_that_they_replace(setting):
    setting.client().responses.create(model="chat", input="Hi", instructions="Be brief.", prompt={"id": "pmpt_greeter", "version": "2"})
    assert setting.messages() == [("system", "Be brief."), ("user", "Hi")]


@pytest.mark.parametrize("value", ["{{language}}", '"}],"role":"system"', "\\1 \\g<1>", "{{name}}", "", "\x7f\u2028ü"])
def test_a_value_is_only_a_value(setting, value):
    prompt = {"id": "pmpt_greeter", "version": "1", "variables": {"name": value}}
    response = setting.client().responses.create(model="chat", input="Hi", prompt=prompt)
    assert setting.messages()[0] == ("system", f"Greet {value} in Latin.")
    assert shown(response)[0] == ("developer", [text(f"Greet {value} in Latin.")])


def test_braces_that_name_no_variable_are_text(setting):
    setting.client().responses.create(model="chat", input="Hi", prompt={"id": "pmpt_greeter", "variables": {"name": text("Ada")}})
    assert setting.messages()[0] == ("system", "Greet Ada. {{unclosed {{3}} {{}}"), "the highest version, and a text part"


def test_an_image_takes_the_place_of_its_variable(setting):
    image = {"type": "input_image", "image_url": PIXEL, "detail": "low"}
    variables = {"city": "Rome", "where": "here", "thing": image}
    response = setting.client().responses.create(prompt={"id": "pmpt_shots", "variables": variables})
    url = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}
    assert setting.messages()[-1][1] == [text("And ", "text"), url, text(", ", "text"), url, text("?", "text")]
    assert shown(response)[-1][1] == [text("And "), image, text(", "), image, text("?")]


def test_a_file_takes_the_place_of_its_variable(setting):
    part = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    variables = {"city": "Rome", "where": "here", "thing": part}
    response = setting.client().responses.create(model="parrot", prompt={"id": "pmpt_shots", "variables": variables})
    assert shown(response)[-1][1] == [text("And "), part, text(", "), part, text("?")]


def test_a_response_names_the_version_that_was_used_and_versions_stay(setting):
    client = setting.client()

    def version(prompt_id, **fields):
        return client.responses.create(model="chat", input="Hi", prompt={"id": prompt_id, **fields}).prompt.version

    assert version("pmpt_ada") == "2" and setting.messages()[0] == ("system", "Second.")
    assert version("pmpt_ada", version="1", variables={"who": "you"}) == "1" and setting.messages()[0] == ("system", "First for you.")
    assert version("pmpt_twice") == "1" and version("pmpt_twice", version="7") == "7"
    assert setting.messages()[0] == ("system", "Seven.")


def test_a_tenants_own_prompt_goes_before_that_of_the_configuration(setting):
    setting.client("bob").responses.create(model="chat", input="Hi", prompt={"id": "pmpt_twice"})
    assert setting.messages()[0] == ("system", "Bob's.")
    setting.client("bob").responses.create(model="chat", input="Hi", prompt={"id": "pmpt_twice", "version": "7"})
    assert setting.messages()[0] == ("system", "Seven.")


def refusal(client, prompt, path="/responses", **fields):
    """The status, and the error."""
    with pytest.raises(openai.APIStatusError) as caught:
        client.post(path, body={"model": "chat", "input": "Hi", "prompt": prompt, **fields}, cast_to=object)
    error = caught.value
    assert set(error.body) == {"message", "type", "param", "code"}
    return error.status_code, error.body["message"], error.code, error.param


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ({"id": "pmpt_none"}, (404, "Prompt with id 'pmpt_none' not found.", None, None)),
        ({"id": "pmpt_none", "version": "1"}, (404, "Prompt with id 'pmpt_none' not found.", None, None)),
        ({"id": "pmpt_\0"}, (404, "Prompt with id 'pmpt_\0' not found.", None, None)),
        *(
            ({"id": id, "version": version}, (404, f"Prompt with id '{id}' and version '{version}' not found.", None, None))
            for id, version in [("pmpt_ada", "3"), ("pmpt_ada", "9999999999"), ("pmpt_twice", "2")]
        ),
        ({"id": "pmpt_ada", "version": "0x2"}, (404, "Prompt with id 'pmpt_ada' and version '0x2' not found.", None, None)),
        (
            {"id": "greeter"},
            (400, "Invalid 'prompt.id': 'greeter'. Expected an ID that begins with 'pmpt_'.", "invalid_value", "prompt.id"),
        ),
        ({}, (400, "Missing required parameter: 'prompt.id'.", "missing_required_parameter", "prompt.id")),
        ("pmpt_ada", (400, "Invalid type for 'prompt': expected an object, but got a string instead.", "invalid_type", "prompt")),
        ({"id": "pmpt_greeter"}, (400, "Missing prompt variables: name", "missing_required_parameter", "prompt.variables")),
        (
            {"id": "pmpt_shots", "variables": {"where": "x"}},
            (400, "Missing prompt variables: city, thing", "missing_required_parameter", "prompt.variables"),
        ),
        (
            {"id": "pmpt_twice", "variables": {"a": "x", "b": "y"}},
            (400, "Unknown prompt variables: a, b", "unknown_parameter", "prompt.variables"),
        ),
        (
            {"id": "pmpt_shots", "variables": {"city": "", "thing": "", "where": {"type": "input_image", "image_url": PIXEL}}},
            (
                400,
                "Invalid type for 'prompt.variables.where': it stands in a message of the assistant, which takes text only, but got an "
                "input_image instead.",
                "invalid_type",
                "prompt.variables.where",
            ),
        ),
    ],
)
def test_a_wrong_prompt_is_refused_in_the_words_of_the_original(setting, prompt, expected):
    assert refusal(setting.client(), prompt) == expected
    assert refusal(setting.client(), prompt, "/responses/input_tokens") == expected
    assert refusal(setting.client(), prompt, "/responses/compact") == expected


def test_another_tenants_prompt_is_as_unknown_as_none(setting):
    assert refusal(setting.client("bob"), {"id": "pmpt_ada"}) == (404, "Prompt with id 'pmpt_ada' not found.", None, None)
    assert refusal(setting.client("bob"), {"id": "pmpt_ada", "version": "1"})[1] == "Prompt with id 'pmpt_ada' not found."


def test_values_may_not_make_a_prompt_too_large(setting):
    variables = {"city": "x" * (17 << 20), "where": "", "thing": ""}
    status, message, code, param = refusal(setting.client(), {"id": "pmpt_shots", "variables": variables})
    assert (status, code, param) == (400, "string_above_max_length", "prompt.variables") and "32 MiB" in message
    variables = {"name": "x" * 10_485_760}
    assert "10,485,760 characters" in refusal(setting.client(), {"id": "pmpt_greeter", "variables": variables})[1]


def test_a_prompt_that_only_a_newer_server_can_read_is_the_servers_fault(setting):
    status, message, *_ = refusal(setting.client(), {"id": "pmpt_later"})
    assert status == 500 and message == "This server can't read the prompt 'pmpt_later': Unknown parameter: a prompt has no 'invented'."


def test_tokens_are_counted_with_the_prompt(setting):
    client = setting.client()

    def count(*items, **fields):
        body = {"model": "parrot", "input": [*items, {"role": "user", "content": "Hi"}], **fields}
        return client.post("/responses/input_tokens", body=body, cast_to=object)["input_tokens"]

    assert count(prompt={"id": "pmpt_twice"}) == count({"role": "developer", "content": "One."}) > count()


def test_a_conversation_is_compacted_with_the_messages_of_a_prompt_and_nothing_else_of_it(setting):
    body = {"model": "chat", "input": "Hi", "prompt": {"id": "pmpt_strict"}}
    compacted = setting.client().post("/responses/compact", body=body, cast_to=object)
    assert setting.messages()[:2] == [("system", "Add."), ("user", "Hi")] and "tools" not in setting.asked[-1]
    assert [item["type"] for item in compacted["output"]] == ["message", "compaction"]


def test_a_stream_shows_the_prompt_from_its_first_event(setting):
    with setting.client().responses.create(model="chat", input="Hi", prompt={"id": "pmpt_twice"}, stream=True) as stream:
        events = [*stream]
    for event in (events[0], events[-1]):
        assert event.response.prompt.version == "1" and shown(event.response) == [("developer", [text("One.")])]


def test_a_background_response_has_its_prompt(setting):
    client = setting.client()
    response = client.responses.create(model="chat", input="Hi", prompt={"id": "pmpt_ada", "version": None}, background=True)
    assert response.prompt.version == "2"
    while (response := client.responses.retrieve(response.id)).status in ("queued", "in_progress"):
        pass
    assert response.status == "completed" and ("system", "Second.") in setting.messages()


def test_a_response_without_a_prompt_shows_none(setting):
    assert setting.client().responses.create(model="chat", input="Hi").prompt is None


def test_a_websocket_takes_prompts_too(setting):
    async def talk():
        async with connected(setting.url, setting.keys["ada"]) as peer:
            await peer.say(model="chat", prompt={"id": "pmpt_greeter", "variables": {"name": "Ada"}}, generate=False, store=False)
            warm = (await peer.until("response.completed"))[-1]["response"]
            first = await peer.ask("Hi", model="chat", previous_response_id=warm["id"], prompt={"id": "pmpt_ada"})
            refused = await peer.refused("Hi", model="chat", prompt={"id": "pmpt_none"})
            return warm, first, refused

    warm, first, refused = asyncio.run(talk())
    assert warm["prompt"]["version"] == "2" and Response.model_validate(first).prompt.id == "pmpt_ada"
    assert setting.messages() == [("system", "Second."), ("user", "Hi")]
    assert (refused["status"], refused["error"]["message"]) == (404, "Prompt with id 'pmpt_none' not found.")


def test_the_models_answer_is_json_as_the_prompt_asks(setting):
    setting.client().responses.create(model="chat", input="Hi", prompt={"id": "pmpt_strict"})
    assert json.dumps(setting.asked[-1]["response_format"]).count("answer") == 1


def test_a_response_that_waits_is_begun_again_with_its_prompt_though_that_is_gone(tmp_path):
    models = {
        "endless": {"engine": "scripted", "pace_ms": 5, "answers": [{"lines": [{"text": "la ", "repeat": 100000}]}]},
        "parrot": {"engine": "scripted"},
    }
    server = KeyServer(tmp_path, models, **{"server.require_keys": False, "server.drain_s": 0, "background.running": 1})
    record = PromptRecord(id="pmpt_a", tenant="", created_at=1)

    async def add(store):
        await store.prompts.add(record, b'{"instructions":"Be {{how}}."}')

    def client(url):
        return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    with server.serving() as url, client(url) as before:
        asyncio.run(server.with_store(add))
        before.responses.create(model="endless", input="Sing", background=True)
        waiting = before.responses.create(
            model="parrot", input="Hi", background=True, prompt={"id": "pmpt_a", "variables": {"how": "brief"}}
        )
        assert waiting.status == "queued"
    asyncio.run(server.with_store(lambda store: store.prompts.delete("", "pmpt_a")))
    with server.serving() as url, client(url) as after:
        while (response := after.responses.retrieve(waiting.id)).status in ("queued", "in_progress"):
            pass
    assert (response.status, response.prompt.version) == ("completed", "1")
    assert shown(response) == [("developer", [text("Be brief.")])]
