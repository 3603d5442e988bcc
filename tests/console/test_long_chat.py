"""Chats of many turns: how many requests open them, and how much of them is on the page; branches of the first question."""

import json
import re
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest

from antiphon.server.processes.run import background_server
from support.console.browser import expect, until
from support.server.scripted_server import configured

ANSWER = "Answer to **{input}**.\n\n```python\nprint(1)\n```\n\nIt takes $t = 1$.\n"
SCRIPT = {"answers": [{"when": "", "say": ANSWER}]}
STEP = 20
MOST_AFTER_A_NEW_ONE = 41


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    config = configured(tmp_path_factory.mktemp("chat"), {"parrot": {"engine": "scripted", **SCRIPT}}, **{"logging.level": "error"})
    with background_server(config, is_persistent=True) as url:
        yield url


def ask_server(url, text, after=None, **fields):
    body = {"model": "parrot", "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]}
    body |= {"previous_response_id": after, **fields}
    with urlopen(Request(f"{url}/v1/responses", json.dumps(body).encode(), {"content-type": "application/json"})) as answer:
        return json.load(answer)["id"]


def chain(url, count, name):
    """The ids of a chat of so many turns."""
    ids = []
    for number in range(count):
        fields = {} if ids else {"metadata": {"title": name}}
        ids.append(ask_server(url, f"{name} {number}", ids[-1] if ids else None, **fields))
    return ids


@pytest.fixture
def asked(visit):
    """The queries with which responses were listed."""
    queries = []

    def note(request):
        address = urlsplit(request.url)
        if re.match(r"/v1/responses(?!/roots)", address.path) and request.method == "GET":
            assert address.path == "/v1/responses", "no response is read alone"
            queries.append({name: values[0] for name, values in parse_qs(address.query).items()})

    visit.page.on("request", note)
    return queries


def question(page, text):
    return page.locator(".bubble").get_by_text(text, exact=True)


def ask(page, text):
    field = page.get_by_label("Message", exact=True)
    field.fill(text)
    field.press("Enter")
    page.get_by_role("article").filter(has=question(page, text)).get_by_role("button", name="Answer again").wait_for()


SCROLL_UP = """(log, text) => {
  const isThere = [...log.querySelectorAll('.bubble')].some(bubble => bubble.textContent.trim() === text);
  if (!isThere) log.scrollTop = 0;
  return isThere;
}"""


def scroll_up_to(page, text):
    """Scroll to the top until a question is on the page, and never after that."""
    log = page.get_by_role("log")
    until(page, lambda: log.evaluate(SCROLL_UP, text))


def open_and_read(visit, asked, url, count):
    name = f"count to {count}"
    ids = chain(url, count, name)
    page = visit.go(f"chat/{ids[0]}").page
    question(page, f"{name} {count - 1}").wait_for()
    page.get_by_role("article").nth(STEP - 1).wait_for()
    page.get_by_role("button", name="Earlier in this chat").wait_for()
    # the latest with their items, then all without, a hundred at a time
    assert [query.get("include") for query in asked[: 1 + -(-count // 100)]] == ["items"] + [None] * -(-count // 100)
    assert page.get_by_role("article").count() <= 2 * STEP, "those in view, and those before them"
    scroll_up_to(page, f"{name} 0")
    assert page.get_by_role("article").count() == count
    assert len([query for query in asked if "include" in query]) == -(-count // STEP)
    ask(page, "one more")
    assert page.get_by_role("article").count() <= MOST_AFTER_A_NEW_ONE
    question(page, "one more").wait_for()
    return page


def test_a_long_chat_opens_with_its_latest_turns_and_the_others_come_as_one_scrolls_up(visit, asked, url):
    page = open_and_read(visit, asked, url, 45)
    scroll_up_to(page, "count to 45 0")
    assert page.get_by_role("article").count() == 46, "what was taken off the page is there again"
    assert len([query for query in asked if "include" in query]) == 3, "and was not read again"


@pytest.mark.long
def test_a_chat_of_five_hundred_messages_takes_a_request_for_each_twenty(visit, asked, url):
    open_and_read(visit, asked, url, 250)


@pytest.mark.long
def test_a_short_chat_takes_one_request(visit, asked, url):
    ids = chain(url, 3, "few")
    page = visit.go(f"chat/{ids[0]}").page
    question(page, "few 2").wait_for()
    page.get_by_role("article").nth(2).get_by_role("button", name="Answer again").wait_for()
    assert len(asked) == 1 and page.get_by_role("button", name="Earlier in this chat").count() == 0


@pytest.mark.long
def test_what_is_above_does_not_push_away_what_is_read(visit, url):
    ids = chain(url, 30, "steady")
    page = visit.go(f"chat/{ids[0]}").page
    question(page, "steady 29").wait_for()
    scroll_up_to(page, "steady 0")
    log = page.get_by_role("log")
    until(page, lambda: log.evaluate("log => log.scrollTop") > 0)


@pytest.mark.long
def test_an_earlier_branch_is_read_when_it_is_shown(visit, asked, url):
    ids = chain(url, 25, "old branch")
    other = ask_server(url, "new branch", ids[0])
    for number in range(STEP):
        other = ask_server(url, f"new branch {number}", other)
    page = visit.go(f"chat/{ids[0]}").page
    question(page, f"new branch {STEP - 1}").wait_for()
    scroll_up_to(page, "new branch")
    page.get_by_role("button", name="Branch before").click()
    question(page, "old branch 24").wait_for()
    assert set(asked[-1]["ids"].split(",")) <= {*ids}
    assert question(page, "new branch").count() == 0


@pytest.mark.long
def test_an_edited_first_question_is_a_branch_of_the_same_chat(visit, url):
    page = visit.go("chat").page
    page.get_by_role("button", name="Model: parrot").wait_for()
    ask(page, "harbour or beach")
    address = page.url
    page.get_by_role("button", name="Edit the question").click()
    field = page.get_by_label("Edit the question").and_(page.locator("textarea"))
    field.fill("harbour or dunes")
    field.press("Enter")
    page.get_by_text("2 of 2").wait_for()
    ask(page, "and then")
    expect(page).to_have_url(address)
    page.reload()
    question(page, "and then").wait_for()
    page.get_by_text("2 of 2").wait_for()
    expect(page.get_by_role("link", name=re.compile("^harbour or"))).to_have_text(re.compile("3 answers$"))
    page.get_by_role("button", name="Branch before").click()
    question(page, "harbour or beach").wait_for()
    assert question(page, "and then").count() == 0


@pytest.mark.long
def test_a_deleted_answer_is_told_in_its_place(visit, url):
    ids = chain(url, 30, "gap")
    page = visit.page
    page.route(
        re.compile(r"/v1/responses\?ids="),
        lambda route: route.fulfill(json={"object": "list", "data": [], "has_more": False, "last_id": None}),
    )
    visit.go(f"chat/{ids[0]}")
    question(page, "gap 29").wait_for()
    told = page.get_by_text("This answer is not on the server any more.")
    log = page.get_by_role("log")
    until(page, lambda: log.evaluate("log => { log.scrollTop = 0; }") or told.count())


def test_a_long_chat_is_deleted_whole_and_what_failed_is_deleted_again(visit, url):
    ids = chain(url, 60, "delete all")
    deleted, refused = [], []

    def through(route):
        id = route.request.url.rpartition("/")[2]
        if route.request.method != "DELETE" or id != ids[30] or refused:
            route.continue_()
            return
        refused.append(id)
        route.fulfill(status=503, json={"error": {"message": "The store is away.", "code": "store_unavailable"}})

    visit.expect("503")
    visit.page.route("**/v1/responses/*", through)
    visit.page.on("requestfinished", lambda request: request.method == "DELETE" and deleted.append(request.url.rpartition("/")[2]))
    page = visit.go(f"chat/{ids[0]}").page
    question(page, "delete all 59").wait_for()
    page.get_by_role("button", name="Rename or delete “delete all”").click()
    page.get_by_role("button", name="Delete the chat").click()
    alert = page.get_by_role("alert").filter(has_text="The store is away.")
    alert.get_by_text(re.compile("[1-9][0-9]* of 60 answers are deleted")).wait_for()
    left = listed(url, ids[0])
    assert {ids[0], ids[30]} <= left < set(ids)
    alert.get_by_role("button", name="Delete the rest").click()
    page.get_by_role("heading", name="Ask something").wait_for()
    assert not listed(url, ids[0])
    until(page, lambda: len(deleted) == len(ids) + 1)
    assert deleted[-1] == ids[0] and set(deleted) == set(ids)


def limiting(visit, most, retry_after):
    """Let so many answers be deleted, and refuse the others until the list that it returns has more."""
    left = [None] * most
    visit.expect("429")
    refusal = {"error": {"message": "Rate limit reached.", "code": "rate_limit_exceeded"}}

    def through(route):
        if route.request.method != "DELETE":
            route.continue_()
        elif left:
            left.pop()
            route.continue_()
        else:
            route.fulfill(status=429, headers={"retry-after": retry_after}, json=refusal)

    visit.page.route("**/v1/responses/*", through)
    return left


def delete_chat(page, name):
    page.get_by_role("button", name=f"Rename or delete “{name}”").click()
    page.get_by_role("button", name="Delete the chat").click()


@pytest.mark.long
def test_deleting_waits_where_the_key_may_ask_no_more(visit, url):
    ids = chain(url, 12, "wait for it")
    left = limiting(visit, 4, "1")
    page = visit.go(f"chat/{ids[0]}").page
    question(page, "wait for it 11").wait_for()
    delete_chat(page, "wait for it")
    page.get_by_text("The server lets this key ask only so often.").wait_for()
    until(page, lambda: len(listed(url, ids[0])) == len(ids) - 4)
    left.extend([None] * len(ids))
    page.get_by_role("heading", name="Ask something").wait_for()
    assert not listed(url, ids[0])


@pytest.mark.long
def test_who_does_not_want_to_wait_stops_deleting(visit, url):
    ids = chain(url, 12, "no patience")
    limiting(visit, 4, "60")
    page = visit.go(f"chat/{ids[0]}").page
    question(page, "no patience 11").wait_for()
    delete_chat(page, "no patience")
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    page.get_by_role("alert").get_by_text("4 of 12 answers are deleted").wait_for()
    assert len(listed(url, ids[0])) == len(ids) - 4


@pytest.mark.long
def test_a_chat_that_could_not_be_read_is_read_again(visit, url):
    ids = chain(url, 2, "come back")
    visit.expect("503")
    refusal = {"error": {"message": "The store is away.", "code": "store_unavailable"}}
    address = re.compile(r"/v1/responses(/roots)?\?")
    visit.page.route(address, lambda route: route.fulfill(status=503, json=refusal))
    page = visit.go(f"chat/{ids[0]}").page
    page.get_by_text("The chats could not be listed. The store is away.").wait_for()
    failed = page.get_by_role("log").get_by_role("alert")
    failed.get_by_text("The store is away.").wait_for()
    page.unroute(address)
    failed.get_by_role("button", name="Try again").click()
    question(page, "come back 1").wait_for()
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("link", name="come back").wait_for()


def listed(url, root):
    with urlopen(f"{url}/v1/responses?root={root}&limit=100") as answer:
        return {row["id"] for row in json.load(answer)["data"]}
