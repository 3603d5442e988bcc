"""Stored responses and conversations as lists, over HTTP."""

import json

import pytest

from antiphon.server.processes.run import background_server
from antiphon.server.responses.lists import MAX_INCLUDED_BYTES
from support.server.key_server import KeyServer
from support.server.messages_peer import ask
from support.server.plain_http import post
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

SLOW = {"engine": "scripted", "pace_ms": 5, "answers": [{"lines": [{"text": "la ", "repeat": 100000}]}]}
MODELS = {"parrot": {"engine": "scripted", **SCRIPT}, "second": {"engine": "scripted", **SCRIPT}, "endless": SLOW}


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite"], scope="module")
def url(request, tmp_path_factory):
    config = configured(tmp_path_factory.mktemp("home"), MODELS, **{"logging.level": "error", "store.url": request.param})
    with background_server(config, is_persistent=True) as address:
        yield address


def create(url, text, after=None, **fields):
    status, _, body = post(url, {"model": "parrot", "input": text, "previous_response_id": after, **fields})
    assert status == 200, body
    return json.loads(body)["id"]


def page(url, path="/v1/responses", key=None):
    status, _, body = ask(url, "GET", path, **({"authorization": f"Bearer {key}"} if key else {}))
    assert status == 200, body
    assert body["object"] == "list"
    ids = [row["id"] for row in body["data"]]
    assert (body["first_id"], body["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
    return ids, body


@pytest.fixture(scope="module")
def tree(url):
    """Two branches below one response, and another response."""
    root = create(url, "Tell me of the fugue", metadata={"title": "Baroque music", "pinned": "true"})
    left, right = create(url, "And the canon?", root), create(url, "Or the toccata?", root, model="second")
    return root, left, right, create(url, "Weather, please")


def test_responses_are_listed_newest_first_with_what_a_page_shows(url, tree):
    root, left, right, other = tree
    ids, body = page(url, "/v1/responses?limit=4")
    assert ids == [other, right, left, root]
    row = body["data"][-1]
    assert (
        row.items()
        >= {
            "object": "response.summary",
            "model": "parrot",
            "status": "completed",
            "background": False,
            "previous_response_id": None,
            "root_id": root,
            "title": "Baroque music",
            "metadata": {"title": "Baroque music", "pinned": "true"},
            "key_id": None,
        }.items()
    )
    assert row["completed_at"] >= row["created_at"] and row["usage"]["total_tokens"] > 0
    assert body["data"][1]["root_id"] == root and body["data"][1]["title"] is None


def test_the_list_has_pages_and_can_be_narrowed(url, tree):
    root, left, right, other = tree
    ids, body = page(url, "/v1/responses?limit=2")
    assert (ids, body["has_more"]) == ([other, right], True)
    assert page(url, f"/v1/responses?limit=2&after={right}")[0] == [left, root]
    assert page(url, f"/v1/responses?root={root}&order=asc")[0] == [root, left, right]
    assert page(url, f"/v1/responses?root={root}&model=second")[0] == [right]
    assert page(url, "/v1/responses?status=failed&model=parrot&root=resp_0")[0] == []


def test_a_page_may_have_all_that_was_said(url, tree):
    root, left, _, other = tree
    rows = page(url, f"/v1/responses?root={root}&include=items")[1]["data"]
    for row in rows:
        whole = ask(url, "GET", f"/v1/responses/{row['id']}")[2]
        assert row["input"] == ask(url, "GET", f"/v1/responses/{row['id']}/input_items?order=asc")[2]["data"]
        assert {name: row[name] for name in ("output", "error", "incomplete_details", "usage")} == {
            name: whole[name] for name in ("output", "error", "incomplete_details", "usage")
        }
    assert [row["input"][0]["content"][0]["text"] for row in rows] == ["Or the toccata?", "And the canon?", "Tell me of the fugue"]
    assert "output" not in page(url, f"/v1/responses?root={root}")[1]["data"][0]
    assert page(url, f"/v1/responses?ids={left},{other},resp_0")[0] == [other, left]
    assert page(url, f"/v1/responses?ids={left},{other}&include=items&limit=1")[1]["has_more"] is True
    assert page(url, "/v1/responses?ids=")[0] == []


def test_words_are_looked_for_in_titles_and_in_all_that_was_said(url, tree):
    root, left, right, _ = tree
    for query, expected in {
        "fugue": [root],
        "BAROQ": [root],
        "said%20cano": [left],  # in the answer
        "toccata%20fugue": [],
        "%22*%20OR": [right],
        "%2E%2E": [],
    }.items():
        assert page(url, f"/v1/responses?q={query}&root={root}")[0] == expected, query
    assert [each["id"] for each in page(url, "/v1/responses/roots?q=toccata")[1]["data"]] == [root]
    assert page(url, "/v1/responses/roots?q=.")[0] == []


def test_roots_are_chats_with_their_branches(url, tree):
    root, _, right, other = tree
    ids, body = page(url, "/v1/responses/roots?limit=2")
    assert ids == [other, root]
    chat = body["data"][1]
    assert chat.pop("created_at") <= chat.pop("updated_at")
    assert chat == {
        "id": root,
        "object": "response.root",
        "title": "Baroque music",
        "metadata": {"title": "Baroque music", "pinned": "true"},
        "model": "second",
        "status": "completed",
        "responses": 3,
        "last_response_id": right,
    }
    assert page(url, f"/v1/responses/roots?limit=1&after={other}")[0] == [root]


def test_a_page_with_items_ends_before_it_is_too_large(url):
    large = "x" * (MAX_INCLUDED_BYTES // 2)
    root = create(url, large)
    last = create(url, large, root)  # the answers have as much
    ids, body = page(url, f"/v1/responses?root={root}&include=items")
    assert (ids, body["has_more"]) == ([last], True)
    assert page(url, f"/v1/responses?root={root}&include=items&after={last}")[0] == [root]


def test_an_edit_of_the_first_question_is_in_the_same_tree(url):
    root = create(url, "First words", metadata={"title": "A chat"})
    edited = create(url, "Other words", metadata={"branch_of": root})
    after = create(url, "And then?", edited)
    assert page(url, f"/v1/responses?root={root}&order=asc")[0] == [root, edited, after]
    chat = page(url, "/v1/responses/roots?limit=1")[1]["data"][0]
    assert (chat["id"], chat["title"], chat["responses"], chat["last_response_id"]) == (root, "A chat", 3, after)
    assert ask(url, "GET", f"/v1/responses/{edited}")[2]["previous_response_id"] is None


def test_the_metadata_can_be_changed_and_found(url):
    id = create(url, "Hello", metadata={"title": "Greeting"})
    before = ask(url, "GET", f"/v1/responses/{id}")[2]
    status, _, changed = ask(url, "POST", f"/v1/responses/{id}", {"metadata": {"title": "Salutation", "branch": "1"}})
    assert (status, changed) == (200, before | {"metadata": {"title": "Salutation", "branch": "1"}})
    assert ask(url, "GET", f"/v1/responses/{id}")[2] == changed
    assert page(url, "/v1/responses?q=salutation")[0] == [id] and page(url, "/v1/responses?q=greeting")[0] == []
    assert create(url, "Again", id)  # it can still be continued
    assert ask(url, "POST", f"/v1/responses/{id}", {"metadata": None})[2]["metadata"] == {}


def test_what_is_still_made_keeps_its_metadata(url):
    id = create(url, "Sing", model="endless", background=True)
    status, _, body = ask(url, "POST", f"/v1/responses/{id}", {"metadata": {}})
    assert (status, body["error"]["code"]) == (409, "response_unfinished")
    # in this order: between two questions a response only goes from queued to in progress
    assert id in page(url, "/v1/responses?status=queued")[0] + page(url, "/v1/responses?status=in_progress")[0]
    ask(url, "POST", f"/v1/responses/{id}/cancel")
    assert page(url, "/v1/responses?limit=1")[1]["data"][0]["background"] is True


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/responses?limit=0", "limit"),
        ("/v1/responses?limit=101", "limit"),
        ("/v1/responses?order=up", "order"),
        ("/v1/responses?status=done", "status"),
        ("/v1/responses?after=resp_0", "after"),
        ("/v1/responses?after=%00", "after"),
        (f"/v1/responses?q={'x' * 257}", "q"),
        (f"/v1/responses?q={'+'.join(f'a{number}' for number in range(17))}", "q"),
        (f"/v1/responses?ids={','.join(['resp_0'] * 101)}", "ids"),
        ("/v1/responses?include=everything", "include"),
        ("/v1/responses/roots?after=resp_0", "after"),
        ("/v1/responses/roots?limit=x", "limit"),
        ("/v1/conversations?after=conv_0", "after"),
        ("/v1/conversations?order=up", "order"),
    ],
)
def test_a_wrong_parameter_is_named(url, path, param):
    status, _, body = ask(url, "GET", path)
    assert (status, body["error"]["param"]) == (400, param)


@pytest.mark.parametrize("body", [{}, {"metadata": "x"}, {"metadata": {"a": 1}}, {"metadata": {"k" * 65: "x"}}, []])
def test_wrong_metadata_is_refused(url, tree, body):
    status, _, answer = ask(url, "POST", f"/v1/responses/{tree[0]}", body)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"
    assert ask(url, "POST", "/v1/responses/resp_0", {"metadata": {}})[0] == 404


def test_conversations_are_listed(url):
    made = [ask(url, "POST", "/v1/conversations", {"metadata": {"title": str(number)}})[2] for number in range(3)]
    ids = [each["id"] for each in made]
    assert page(url, "/v1/conversations?limit=3")[0] == ids[::-1]
    assert page(url, f"/v1/conversations?order=asc&after={ids[0]}")[0] == ids[1:]
    assert page(url, "/v1/conversations?limit=1")[1]["data"] == made[-1:]
    assert page(url, "/v1/conversations?limit=1")[1]["has_more"] is True


async def test_nobody_sees_another_tenants(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    (ada, record), eve = await server.create_key(tenant="ada"), await server.key(tenant="eve")
    writer = await server.key(tenant="ada", scopes=("responses:write",))
    with server.serving() as url:

        def send(key, method, path, body=None):
            return ask(url, method, path, body, authorization=f"Bearer {key}")

        mine = send(ada, "POST", "/v1/responses", {"model": "parrot", "input": "secret"})[2]["id"]
        send(ada, "POST", "/v1/conversations", {})
        for path in ("/v1/responses", "/v1/responses?q=secret", f"/v1/responses?root={mine}", "/v1/responses/roots", "/v1/conversations"):
            assert page(url, path, eve)[0] == [] and len(page(url, path, ada)[0]) == 1, path
            assert send(writer, "GET", path)[0] == 403
            assert ask(url, "GET", path)[0] == 401
        for path in ("/v1/responses", "/v1/responses/roots"):
            assert send(eve, "GET", f"{path}?after={mine}")[0] == 400
        assert send(eve, "POST", f"/v1/responses/{mine}", {"metadata": {}})[0] == 404
        assert page(url, "/v1/responses", ada)[1]["data"][0]["key_id"] == record.id
