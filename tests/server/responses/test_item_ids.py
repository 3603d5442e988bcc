"""Ids that clients give to items: the store accepts them, or the error names the maximum length."""

import json
import secrets
import urllib.error
import urllib.request

import pytest

from antiphon.server.processes.run import background_server
from support.server.scripted_server import configured


@pytest.fixture(scope="module")
def postgres_url(postgres_server, tmp_path_factory):
    """The address of a server with a store in PostgreSQL, whose indexes have no room for long ids."""
    home = tmp_path_factory.mktemp("home")
    config = configured(home, {"parrot": {"engine": "scripted"}}, **{"store.url": postgres_server.new_store()})
    with background_server(config, is_persistent=True) as url:
        yield url


def respond(url, item, **fields):
    body = json.dumps({"model": "parrot", "input": [item], **fields}).encode()
    request = urllib.request.Request(f"{url}/v1/responses", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def message(id):
    return {"type": "message", "id": id, "role": "user", "content": "Hi"}


def random_id(length):
    """One that no database can compress."""
    return "msg_" + secrets.token_urlsafe(length)[: length - 4]


def test_a_long_id_is_stored_and_can_be_referred_to(postgres_url):
    id = random_id(2048)
    assert respond(postgres_url, message(id))[0] == 200
    status, response = respond(postgres_url, {"type": "item_reference", "id": id})
    assert (status, response["output"][0]["content"][0]["text"]) == (200, "Hi")


@pytest.mark.parametrize("fields", [{}, {"background": True}, {"store": False}])
@pytest.mark.parametrize(("id", "length"), [(random_id(2049), 2049), (random_id(1500) + "é" * 500, 2500)])
def test_an_id_that_is_too_long_is_refused_with_the_longest_length(postgres_url, id, length, fields):
    status, error = respond(postgres_url, message(id), **fields)
    assert (status, error["code"], error["param"]) == (400, "string_above_max_length", "input[0].id")
    assert f"maximum length 2048, but got a string with length {length} instead" in error["message"]


@pytest.mark.parametrize("whose", ["input", "output"])
@pytest.mark.parametrize("is_reference", [False, True])
def test_an_item_that_a_previous_response_has_is_refused(postgres_url, whose, is_reference):
    given = message(random_id(40))
    _, first = respond(postgres_url, given)
    item = given if whose == "input" else first["output"][0]
    again = {"type": "item_reference", "id": item["id"]} if is_reference else item
    for previous in (first, respond(postgres_url, message(random_id(40)), previous_response_id=first["id"])[1]):
        status, error = respond(postgres_url, again, previous_response_id=previous["id"])
        assert (status, error["param"], error["code"]) == (400, "input", None)
        assert error["message"].startswith(f"Duplicate item found with id {item['id']}.")
    assert respond(postgres_url, again)[0] == 200


@pytest.mark.parametrize("is_reference", [False, True])
def test_an_item_that_is_in_the_input_twice_is_refused(postgres_url, is_reference):
    item = respond(postgres_url, message(random_id(40)))[1]["output"][0]
    again = {"type": "item_reference", "id": item["id"]} if is_reference else item
    status, error = respond(postgres_url, message(random_id(40)), input=[again, {"role": "user", "content": "Hi"}, item])
    assert (status, error["param"], error["code"]) == (400, "input", None)
    assert error["message"].startswith(f"Duplicate item found with id {item['id']}.")


@pytest.mark.parametrize("id", [{"a": 1}, ["a"], 7])
def test_an_id_of_an_unknown_item_that_is_no_string_is_no_other_items_id(postgres_url, id):
    _, first = respond(postgres_url, message(random_id(40)))
    body = {"previous_response_id": first["id"], "input": [{"type": "of_tomorrow", "id": id}, {"role": "user", "content": "Hi"}]}
    assert respond(postgres_url, message(random_id(40)), **body)[0] == 200


@pytest.mark.parametrize("item", [{"type": "reasoning", "summary": []}, {"type": "item_reference"}, {"type": "of_tomorrow"}])
def test_that_holds_for_every_kind_of_item(postgres_url, item):
    status, error = respond(postgres_url, {**item, "id": random_id(9000)})
    assert (status, error["code"], error["param"]) == (400, "string_above_max_length", "input[0].id")
