"""`antiphon prompts`, beside a running server too."""

import json

import openai
import pytest

from antiphon.config.load import load
from antiphon.server.processes.run import background_server

pytestmark = pytest.mark.usefixtures("store")

GREETER = """
instructions = "Greet {{name}} in {{language}}."
temperature = 0.2

[variables]
language = "Latin"

[[messages]]
role = "user"
content = [{ type = "input_text", text = "Hello {{who}}!\\nBye." }, { type = "input_image", image_url = "https://example.com/a.png" }]
"""
CONFIGURED = """
[[prompts]]
id = "pmpt_everyones"
instructions = "One."

[[prompts]]
id = "pmpt_everyones"
version = 2
instructions = "Two for {{whom}}."
"""
PARROT = '[[models]]\nname = "parrot"\nengine = "scripted"\n'


@pytest.fixture
def greeter(home):
    (home / "greeter.toml").write_text(GREETER)
    (home / "brief.md").write_text("\nBe {{how}}.\n")
    return home


def test_a_prompt_is_added_from_a_file_and_shown(antiphon, greeter):
    added = antiphon("prompts", "add", "greeter.toml", "--id", "pmpt_greeter")
    assert (added.code, added.out) == (0, "pmpt_greeter\n") and "for requests without a key" in added.err
    shown = antiphon("prompts", "show", "pmpt_greeter").out
    assert [line.split(maxsplit=1) for line in shown.splitlines()[:5] if not line.startswith("created")] == [
        ["version", "1 (the default)"],
        ["tenant", "-"],
        ["variables", 'name, language = "Latin", who'],
        ["temperature", "0.2"],
    ]
    assert shown.endswith("\ninstructions:\n  Greet {{name}} in {{language}}.\n\nuser:\n  Hello {{who}}!\n  Bye.[input_image]\n")


def test_what_is_shown_as_json_can_be_added_again(antiphon, greeter):
    antiphon("prompts", "add", "greeter.toml", "--id", "pmpt_greeter")
    fields = antiphon("prompts", "show", "pmpt_greeter", "--json").json
    assert (fields["id"], fields["version"], fields["tenant"]) == ("pmpt_greeter", 1, "")
    assert fields["variables"] == ["name", "language", "who"]
    (greeter / "again.json").write_text(json.dumps(fields["content"]))
    again = antiphon("prompts", "add", "again.json", "--json").json
    assert again["id"].startswith("pmpt_") and len(again["id"]) == 53
    assert antiphon("prompts", "show", again["id"], "--json").json["content"] == fields["content"]


def test_versions_are_added_and_one_of_them_is_the_default(antiphon, greeter):
    antiphon("prompts", "add", "greeter.toml", "--id", "pmpt_a")
    assert antiphon("prompts", "update", "pmpt_a", "brief.md").out == "pmpt_a has version 2 now\n"
    assert antiphon("prompts", "show", "pmpt_a", "--json").json["content"] == {"instructions": "Be {{how}}."}
    kept = antiphon("prompts", "update", "pmpt_a", "greeter.toml", "--keep-default")
    assert kept.out == "pmpt_a has version 3 now; version 2 stays the default\n"
    assert antiphon("prompts", "set-default", "pmpt_a", "1").out == "version 1 is the default of pmpt_a\n"
    rows = antiphon("prompts", "versions", "pmpt_a", "--json").json
    assert [(row["version"], row["is_default"]) for row in rows] == [(1, True), (2, False), (3, False)]
    lines = antiphon("prompts", "versions", "pmpt_a").out.splitlines()
    assert lines[0].split() == ["VERSION", "DEFAULT", "CREATED", "(UTC)", "VARIABLES"] and lines[2].endswith("  how")
    assert "2; the default is 1" in antiphon("prompts", "show", "pmpt_a", "--version", "2").out


def test_a_tenants_prompts_are_its_own(antiphon, greeter):
    antiphon("keys", "create", "--name", "x")
    for tenant in ((), ("--tenant", "ada"), ("--tenant", "bob")):
        antiphon("prompts", "add", "brief.md", "--id", "pmpt_a", *tenant)
    assert [each["tenant"] for each in antiphon("prompts", "list", "--json").json] == ["default", "ada", "bob"]
    assert [each["tenant"] for each in antiphon("prompts", "list", "--tenant", "bob", "--json").json] == ["bob"]
    for command in (["update", "pmpt_a", "brief.md"], ["show", "pmpt_a"], ["set-default", "pmpt_a", "1"], ["delete", "pmpt_a"]):
        refused = antiphon("prompts", *command)
        assert refused.code == 2 and "name one of them with --tenant: 'default', 'ada', 'bob'." in refused.err
    assert antiphon("prompts", "delete", "pmpt_a", "--tenant", "ada").out == "pmpt_a is deleted\n"
    assert [each["tenant"] for each in antiphon("prompts", "list", "--json").json] == ["default", "bob"]


def test_prompts_of_the_configuration_are_listed_but_not_changed(antiphon, greeter):
    (greeter / "antiphon.toml").write_text(CONFIGURED)
    heading, row = antiphon("prompts", "list").out.splitlines()
    assert heading.split()[:4] == ["ID", "TENANT", "VERSIONS", "DEFAULT"]
    assert row.split() == ["pmpt_everyones", "all,", "by", "the", "configuration", "2", "2", "-"]
    assert antiphon("prompts", "list", "--json", ANTIPHON_STORE__URL="memory").json == [
        {"id": "pmpt_everyones", "tenant": None, "created_at": None, "default_version": 2, "latest_version": 2}
    ]
    assert antiphon("prompts", "show", "pmpt_everyones", ANTIPHON_STORE__URL="memory").out.endswith("  Two for {{whom}}.\n")
    assert "the default is 2" in antiphon("prompts", "show", "pmpt_everyones", "--version", "1").out
    assert len(antiphon("prompts", "versions", "pmpt_everyones", "--json").json) == 2
    for command in (["update", "pmpt_everyones", "brief.md"], ["set-default", "pmpt_everyones", "1"], ["delete", "pmpt_everyones"]):
        refused = antiphon("prompts", *command)
        assert refused.code == 2 and "'pmpt_everyones' is in the configuration; change it there." in refused.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "none.toml"], "none.toml: there is no such file."),
        (["add", "."], ".: can't be read"),
        (["add", "latin.md"], "latin.md: is not UTF-8 text."),
        (["add", "broken.toml"], "broken.toml: is not valid: "),
        (["add", "broken.json"], "broken.json: is not valid: "),
        (["add", "list.json"], "list.json: is not valid: "),
        (["add", "nan.toml"], "nan.toml: Invalid type for 'temperature': expected a decimal, but got null instead."),
        (["add", "typo.toml"], "Unknown parameter: a prompt has no 'temprature'. Did you mean 'temperature'?"),
        (["add", "hot.toml"], "hot.toml: Invalid 'temperature': decimal above maximum value."),
        (["add", "empty.md"], "empty.md: Missing required parameter: 'instructions'."),
        (["add", "large.md"], "large.md: It is larger than 1 MiB."),
        (["add", "role.toml"], "role.toml: Invalid value: 'input_image'."),
        (["add", "name.toml"], "name.toml: Invalid 'variables.a b': string does not match pattern."),
        (["add", "brief.md", "--id", "greeter"], "--id takes pmpt_ and up to 64 letters, digits, - and _; got 'greeter'."),
        (["add", "brief.md", "--id", "pmpt_" + "x" * 65], "--id takes pmpt_"),
        (["add", "brief.md", "--id", "pmpt_there"], "There is a prompt 'pmpt_there' already"),
        (["update", "pmpt_none", "brief.md"], "There is no prompt 'pmpt_none'; `antiphon prompts list` shows them."),
        (["update", "pmpt_there", "brief.md", "--tenant", "bob"], "There is no prompt 'pmpt_there'"),
        (["set-default", "pmpt_there", "2"], "'pmpt_there' has no version 2"),
        (["show", "pmpt_there", "--version", "0"], "'pmpt_there' has no version 0; it has 1."),
        (["delete"], "Name at least one prompt"),
        (["delete", "pmpt_there", "pmpt_none"], "There is no prompt 'pmpt_none'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(antiphon, greeter, arguments, told):
    contents = {
        "latin.md": b"\xff",
        "broken.toml": b"a =",
        "broken.json": b"{",
        "list.json": b"[]",
        "nan.toml": b"instructions = 'x'\ntemperature = nan",
        "typo.toml": b"instructions = 'x'\ntemprature = 1",
        "hot.toml": b"instructions = 'x'\ntemperature = 3",
        "empty.md": b"",
        "large.md": b"x" * (1 << 20),
        "role.toml": b"messages = [{ role = 'assistant', content = [{ type = 'input_image' }] }]",
        "name.toml": b"instructions = 'x'\nvariables = { 'a b' = '' }",
    }
    if arguments[1:2] and arguments[1] in contents:
        (greeter / arguments[1]).write_bytes(contents[arguments[1]])
    antiphon("prompts", "add", "brief.md", "--id", "pmpt_there")
    before = antiphon("prompts", "list", "--json").json
    refused = antiphon("prompts", *arguments)
    assert refused.code == 2 and told in refused.err
    assert antiphon("prompts", "list", "--json").json == before


def test_a_store_that_forgets_has_no_prompts(antiphon, greeter):
    refused = antiphon("prompts", "add", "brief.md", ANTIPHON_STORE__URL="memory")
    assert refused.code == 2 and "Stored prompts need a store that lasts" in refused.err
    assert "there are no prompts in the store in memory" in antiphon("prompts", "list", ANTIPHON_STORE__URL="memory").err


def test_a_wrong_prompt_in_the_configuration_is_found_before_the_server_starts(antiphon, home):
    (home / "antiphon.toml").write_text(PARROT + "[[prompts]]\nid = 'pmpt_a'\nversion = 2\ninstruction = 'x'\n")
    for command in (["config", "check"], ["serve"], ["prompts", "list"]):
        checked = antiphon(*command)
        assert checked.code == 2 and "Prompt 'pmpt_a' (version 2): Unknown parameter: a prompt has no 'instruction'." in checked.err
    (home / "antiphon.toml").write_text(PARROT + "[[prompts]]\nid = 'greeter'\ninstructions = 'x'\n")
    assert "prompts[0].id: " in antiphon("config", "check").err
    (home / "antiphon.toml").write_text(PARROT + CONFIGURED + CONFIGURED)
    assert "more than one prompt is 'pmpt_everyones (version 1)' and" in antiphon("config", "check").err
    (home / "antiphon.toml").write_text(PARROT + CONFIGURED)
    assert antiphon("config", "check").code == 0
    assert '{"id":"pmpt_everyones","version":2,"default":false,"instructions":"Two for {{whom}}."}' in antiphon("config", "show").out


def test_a_running_server_has_what_was_added_at_once(antiphon, greeter):
    (greeter / "antiphon.toml").write_text(PARROT)
    config = load({}, None, {"HOME": str(greeter)}, greeter, system_file=greeter / "none.toml").config
    with background_server(config, is_persistent=True) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        def ask(**fields):
            return client.responses.create(input="Hi", prompt={"id": "pmpt_a", **fields}).instructions[0].content[0].text

        with pytest.raises(openai.NotFoundError):
            ask()
        antiphon("prompts", "add", "brief.md", "--id", "pmpt_a")
        assert ask(variables={"how": "kind"}) == "Be kind."
        antiphon("prompts", "update", "pmpt_a", "greeter.toml")
        assert ask(variables={"name": "Ada", "who": "you"}) == "Greet Ada in Latin."
        assert ask(version="1", variables={"how": "kind"}) == "Be kind."
        antiphon("prompts", "set-default", "pmpt_a", "1")
        assert ask(variables={"how": "kind"}) == "Be kind."
        antiphon("prompts", "delete", "pmpt_a")
        with pytest.raises(openai.NotFoundError):
            ask()
