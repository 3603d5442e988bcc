"""`antiphon ask`, answered by a scripted model."""

import json

import pytest

from support.cli.saying import server


def test_the_answer_alone_goes_to_the_standard_output(parrot):
    result = parrot("ask", "Hello there.")
    assert (result.code, result.out) == (0, "You said: Hello there.\n")


def test_without_a_server_it_says_that_the_engine_starts_here(parrot):
    assert "so one starts for this command only" in parrot("ask", "Hello.").err


def test_an_answer_in_one_piece_is_the_same(parrot):
    assert parrot("ask", "Hello there.", "--no-stream").out == "You said: Hello there.\n"


def test_a_dash_reads_the_question_from_the_standard_input(parrot):
    assert parrot("ask", "-", stdin="From a pipe.").out == "You said: From a pipe.\n"


def test_no_question_is_a_mistake(parrot):
    assert parrot("ask", "-", stdin=" \n").code == 2


def test_json_is_the_whole_response(parrot):
    response = parrot("ask", "Hello.", "--json", "--instructions", "Be kind.").json
    assert (response["object"], response["status"], response["instructions"]) == ("response", "completed", "Be kind.")


def test_json_of_a_stream_is_an_event_on_every_line(parrot):
    events = [json.loads(line) for line in parrot("ask", "Hello.", "--json", "--stream").out.splitlines()]
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"


def test_a_refusal_is_printed_like_an_answer(parrot):
    assert parrot("ask", "Please decline.").out == parrot("ask", "Please decline.", "--no-stream").out == "No.\n"


def test_a_model_that_breaks_is_a_failure_with_its_reason(parrot):
    for how in ("--stream", "--no-stream"):
        result = parrot("ask", "Now break.", how)
        assert result.code == 1
        assert "It broke." in result.err


def test_an_answer_that_was_cut_off_is_printed_with_a_note(parrot):
    result = parrot("ask", "Now cut.")
    assert (result.code, result.out) == (0, "So far\n")
    assert "cut off: max_output_tokens" in result.err


def test_a_model_that_there_is_none_of_is_named_with_those_there_are(parrot):
    result = parrot("ask", "Hello.", "--model", "gpt-9")
    assert result.code == 1
    assert "`gpt-9` does not exist" in result.err
    assert "'parrot'" in result.err


def test_a_server_that_was_named_must_be_there(parrot):
    for result in (
        parrot("ask", "Hello.", "--url", "http://127.0.0.1:1"),
        parrot("ask", "Hello.", OPENAI_BASE_URL="http://127.0.0.1:1/v1"),
    ):
        assert result.code == 1
        assert "No answer from http://127.0.0.1:1" in result.err


@pytest.mark.parametrize("typed", ["127.0.0.1:8642", "nonsense", "ftp://127.0.0.1/x", "http:///v1"])
def test_an_address_that_is_none_is_a_mistake(parrot, typed):
    result = parrot("ask", "Hello.", "--url", typed)
    assert (result.code, result.err) == (2, f"antiphon: --url takes an address such as http://127.0.0.1:8642/v1, not '{typed}'.\n")
    assert "OPENAI_BASE_URL takes an address" in parrot("ask", "Hello.", OPENAI_BASE_URL=typed).err


@pytest.mark.parametrize(
    ("flags", "environ", "sent"),
    [
        (True, {"ANTIPHON_API_KEY": "ak-1"}, "Bearer ak-1"),
        (True, {"ANTIPHON_API_KEY": "ak-1", "OPENAI_API_KEY": "sk-1"}, "Bearer ak-1"),
        (True, {"OPENAI_API_KEY": "sk-1"}, "Bearer sk-1"),
        (False, {"ANTIPHON_API_KEY": "ak-1", "OPENAI_API_KEY": "sk-1"}, "Bearer sk-1"),
        (False, {"ANTIPHON_API_KEY": "ak-1"}, None),
    ],
)
def test_a_server_that_was_named_gets_the_key_that_is_for_it(parrot, flags, environ, sent):
    with server(401, b'{"error":{"message":"No key. Send one in a header."}}') as (url, seen):
        result = parrot("ask", "Hello.", *(("--url", url) if flags else ()), **environ, **({} if flags else {"OPENAI_BASE_URL": url}))
    assert seen[0][1] == sent
    assert result.err.startswith("antiphon: No key. Put a key into ANTIPHON_API_KEY, ")


@pytest.mark.parametrize("name", ["*", "m"])
def test_the_operator_is_told_which_model_server_is_down(antiphon, home, free_port, name):
    address = "http://127.0.0.1:9/v1"  # the port of `discard`, where nobody listens
    (home / "antiphon.toml").write_text(
        f'[server]\nport = {free_port}\n[[models]]\nname = "{name}"\nengine = "chat"\nbase_url = "{address}"\nretries = 0\n'
    )
    result = antiphon("ask", "Hello.")
    assert result.code == 1
    assert f"The model server of '{name}' at {address} can't be reached: connection refused." in result.err
    assert "--model" not in result.err
