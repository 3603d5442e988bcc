"""The chat: questions and answers, tools, branches, what is kept, by mouse and by keyboard."""

import contextlib
import json
import re
import subprocess
import sys
from urllib.request import urlopen

import pytest

from antiphon.server.processes.run import background_server
from support.console.browser import Visit, axe_findings, expect
from support.console.node import packages
from support.server.scripted_server import configured

FUNCTIONS = '''
def book_ticket(boat: str) -> str:
    """Book a ticket."""
    return f"Booked for {boat}."
'''

ANSWER = """The last boat leaves at **21:30**.

```python
print("Texel")
```

It takes $t = \\frac{s}{v}$.

<img src="/nothing" onerror="alert(1)"> [a trap](javascript:alert(1)) ![a picture](https://example.com/x.png)
"""

RIGHT_TO_LEFT = "`print` مرحبا بالعالم\n\n- عنصر\n\n```\nprint(1)\n```\n\nPlain English.\n"

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

SCRIPT = {
    "answers": [
        {"to": "result", "say": "The tool says {input}"},
        {"when": "ferry", "lines": [{"reasoning": "Sundays differ."}, {"text": ANSWER}]},
        {"when": "weather", "lines": [{"call": "get_weather", "arguments": {"city": "Paris"}}]},
        {"when": "book", "lines": [{"call": "book_ticket", "namespace": "harbour", "arguments": {"boat": "21:30"}}]},
        {
            "when": "tides",
            "lines": [
                {"text": "The tide turns."},
                {
                    "annotation": {
                        "type": "url_citation",
                        "url": "https://example.com/tides",
                        "title": "Tides",
                        "start_index": 0,
                        "end_index": 15,
                    }
                },
            ],
        },
        {"when": "endless", "lines": [{"text": "la "}, {"wait_ms": 20}, {"text": "la ", "repeat": 100}, {"wait_ms": 600_000}]},
        {"when": "مرحبا", "lines": [{"text": RIGHT_TO_LEFT}]},
        {"when": "later", "lines": [{"text": "It is "}, {"wait_ms": 5000}, {"text": "done."}]},
        {"when": "break", "lines": [{"failure": {"status": 503, "message": "The model is loading.", "retry_after_s": 2}}]},
        {"when": "midway", "lines": [{"text": "So far"}, {"wait_ms": 1500}, {"failure": {"message": "The model broke."}}]},
        {"when": "", "say": "You said: {input}"},
    ]
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    home = tmp_path_factory.mktemp("chat")
    functions = home / "functions.py"
    functions.write_text(FUNCTIONS)
    models = {"parrot": {"engine": "scripted", **SCRIPT}, "plain": {"engine": "scripted", "abilities": {"images": False}, **SCRIPT}}
    config = configured(home, models, **{"logging.level": "error", "tools.functions": [{"label": "harbour", "file": str(functions)}]})
    with background_server(config, is_persistent=True) as url:
        yield url


@pytest.fixture
def page(visit):
    page = visit.go("chat").page
    page.get_by_role("button", name="Model: parrot").wait_for()
    return page


def ask(page, text):
    field = page.get_by_label("Message", exact=True)
    field.fill(text)
    field.press("Enter")


def answered(page, text):
    """The article that has a text, once its answer is whole."""
    article = page.get_by_role("article").filter(has_text=text)
    article.get_by_role("button", name="Answer again").wait_for()
    return article


def test_an_answer_streams_and_is_rendered_without_running_anything(page):
    ask(page, "When is the ferry?")
    article = answered(page, "The last boat")
    expect(article.locator("strong")).to_have_text("21:30")
    expect(page.get_by_role("status", name="Latest answer")).to_contain_text("The last boat leaves at 21:30.")
    article.locator(".hljs-string", has_text="Texel").wait_for()
    article.locator(".katex").first.wait_for()
    expect(article).to_contain_text('<img src="/nothing"')
    expect(article.get_by_role("link", name="a picture")).to_have_attribute("href", "https://example.com/x.png")
    expect(article.locator("img")).to_have_count(0)
    expect(article.locator("a[href^=javascript]")).to_have_count(0)
    expect(article).to_contain_text(re.compile(r"\d+ tokens.*first \d+", re.S))
    thought = article.get_by_text("Sundays differ.")
    expect(thought).to_be_hidden()
    article.get_by_text(re.compile("^Thought")).click()
    thought.wait_for()


def test_a_chat_is_found_again_after_a_reload_and_by_search(page):
    ask(page, "Remember the lighthouse of Eierland")
    answered(page, "You said: Remember")
    ask(page, "And its keeper")
    answered(page, "You said: And its keeper")
    expect(page).to_have_url(re.compile(r"#/chat/resp_\w+$"))
    address = page.url
    page.reload()
    answered(page, "You said: Remember")  # turns are read from the last one
    answered(page, "You said: And its keeper")
    expect(page.get_by_role("article")).to_have_count(2)
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("heading", name="Ask something").wait_for()
    page.keyboard.press("Control+k")
    field = page.get_by_role("searchbox", name="Search chats")
    expect(field).to_be_focused()
    with page.expect_response("**/v1/responses/roots?*q=eierl*"):
        field.press_sequentially("eierl")
    page.get_by_role("link", name=re.compile("Remember the lighthouse")).click()
    answered(page, "You said: And its keeper")
    expect(page).to_have_url(address)
    field.fill("nobody-said-this")
    page.get_by_text("No chat has these words.").wait_for()


@pytest.mark.long
def test_edits_and_repeats_are_branches_that_stay(page):
    ask(page, "first question")
    answered(page, "You said: first question")
    ask(page, "second question")
    article = answered(page, "You said: second question")
    article.get_by_role("button", name="Edit the question").click()
    field = page.get_by_label("Edit the question").and_(page.locator("textarea"))
    field.fill("another question")
    field.press("Enter")
    article = answered(page, "You said: another question")
    article.get_by_text("2 of 2").wait_for()
    article.get_by_role("button", name="Answer again").click()
    page.get_by_text("3 of 3").wait_for()
    answered(page, "You said: another question")  # a reload would break it off
    page.get_by_role("button", name="Branch before").click()
    page.get_by_text("2 of 3").wait_for()
    page.get_by_role("button", name="Branch before").click()
    answered(page, "You said: second question").get_by_text("1 of 3").wait_for()
    page.reload()
    answered(page, "You said: another question").get_by_text("3 of 3").wait_for()
    page.get_by_role("button", name="Branch before").click()
    page.get_by_text("2 of 3").wait_for()
    page.get_by_role("button", name="Branch before").click()
    answered(page, "You said: second question")


@pytest.mark.long
def test_a_function_is_answered_by_the_person(page):
    page.get_by_role("button", name="Tools").click()
    page.get_by_label("Functions that you answer for").check()
    page.keyboard.press("Escape")
    ask(page, "How is the weather?")
    page.get_by_text("waits for a result").wait_for()
    page.get_by_text('{"city":"Paris"}').wait_for()
    page.get_by_label("Result to give back").fill("18 degrees")
    page.get_by_role("button", name="Give").click()
    answered(page, "The tool says 18 degrees")
    page.get_by_text("Arguments and result").click()
    page.locator("pre.result", has_text="18 degrees").wait_for()


def turn_on_harbour(page):
    page.get_by_role("button", name="Tools").click()
    page.get_by_label("harbour").check()
    page.keyboard.press("Escape")


def test_a_call_is_allowed_by_a_button_and_refused_by_a_key(page):
    turn_on_harbour(page)
    ask(page, "book a ticket")
    card = page.get_by_label("Approval of book_ticket")
    card.get_by_text("harbour").wait_for()
    card.get_by_role("button", name="Allow once").click()
    answered(page, "The tool says Booked for 21:30.")
    card.get_by_text("Allowed").wait_for()
    ask(page, "book again")
    card.last.get_by_text("Wants to use").wait_for()
    card.last.press("r")
    card.last.get_by_text("Refused").wait_for()


@pytest.mark.long
def test_what_was_allowed_in_a_chat_is_not_asked_again(page):
    turn_on_harbour(page)
    ask(page, "book a ticket")
    page.get_by_role("button", name="Allow in this chat").click()
    answered(page, "The tool says Booked")
    ask(page, "book another")
    expect(page.get_by_role("log").get_by_text("The tool says Booked")).to_have_count(2)
    page.get_by_role("button", name="Send").wait_for()  # no answer is under way
    expect(page.get_by_text("Wants to use")).to_have_count(0)


@pytest.mark.long
def test_citations_are_numbers_that_lead_to_their_source(page):
    ask(page, "the tides")
    article = answered(page, "The tide turns.")
    expect(article.get_by_role("link", name="1", exact=True)).to_have_attribute("href", "https://example.com/tides")
    expect(article.get_by_role("list", name="Sources")).to_have_text("Tides")


@pytest.mark.long
def test_an_answer_can_be_stopped_and_what_came_stays(page):
    ask(page, "endless")
    page.get_by_text("la la la").wait_for()
    page.keyboard.press("Escape")
    article = answered(page, "la la la")
    article.get_by_text("Stopped", exact=True).wait_for()
    ask(page, "go on")
    answered(page, "You said: go on")


@pytest.mark.long
def test_a_background_answer_is_resumed_after_a_reload(page):
    page.get_by_role("button", name="Instructions").click()
    page.get_by_label("Answer in the background").check()
    page.keyboard.press("Escape")
    ask(page, "later")
    page.get_by_text("It goes on if you leave.").wait_for()
    page.wait_for_url("**/#/chat/resp_*")
    page.reload()
    answered(page, "It is done.")


@pytest.mark.long
def test_the_code_of_a_background_answer_waits_for_it(page):
    page.get_by_role("button", name="Instructions").click()
    page.get_by_label("Answer in the background").check()
    page.keyboard.press("Escape")
    ask(page, "hello there")
    answered(page, "You said: hello there").get_by_role("button", name="Show as code").click()
    code = page.get_by_role("dialog").locator("pre").inner_text()
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "You said: hello there\n"


@pytest.mark.long
def test_what_is_not_to_be_stored_is_sent_again_and_listed_nowhere(page, url):
    page.get_by_role("button", name="Instructions").click()
    page.get_by_label("Do not store").check()
    page.keyboard.press("Escape")
    ask(page, "a secret of mine")
    answered(page, "You said: a secret").get_by_text("not stored").wait_for()
    with page.expect_request("**/v1/responses") as asked:
        ask(page, "and another")
    sent = json.loads(asked.value.post_data)
    assert sent["store"] is False and "previous_response_id" not in sent
    assert [item["role"] for item in sent["input"] if item["type"] == "message"] == ["user", "assistant", "user"]
    answered(page, "You said: and another")
    expect(page).not_to_have_url(re.compile("resp_"))
    with urlopen(f"{url}/v1/responses/roots") as answer:  # an answer is stored before its end is told
        assert "a secret of mine" not in answer.read().decode()
    expect(page.get_by_role("link", name="a secret of mine")).to_have_count(0)


@pytest.mark.long
def test_pictures_and_long_texts_are_attached_by_paste_and_drop(page):
    page.evaluate("text => navigator.clipboard.writeText(text)", "word " * 1000)
    page.get_by_label("Message", exact=True).press("Control+v")
    page.get_by_text("pasted.txt · 5.0 kB").wait_for()
    dropped = page.evaluate_handle(
        """png => {
            const transfer = new DataTransfer();
            const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
            transfer.items.add(new File([bytes], 'dot.png', {type: 'image/png'}));
            return transfer;
        }""",
        PICTURE,
    )
    page.get_by_label("Message", exact=True).dispatch_event("drop", {"dataTransfer": dropped})  # on its way up, once
    page.get_by_text("dot.png").wait_for()
    with page.expect_request("**/v1/responses") as asked:
        ask(page, "what is this?")
    parts = json.loads(asked.value.post_data)["input"][0]["content"]
    assert [part["type"] for part in parts] == ["input_text", "input_image", "input_text"]
    assert parts[1]["image_url"] == f"data:image/png;base64,{PICTURE}"
    page.get_by_role("button", name="Answer again").wait_for()
    page.reload()
    page.get_by_alt_text("Sent with the question").wait_for()
    page.get_by_text("pasted.txt", exact=True).wait_for()


@pytest.mark.long
def test_a_refusal_says_what_happened_and_what_to_do(visit, page):
    visit.expect("503")
    ask(page, "break")
    box = page.get_by_role("alert")
    expect(box).to_contain_text("Not answered. The model is loading.")
    box.get_by_text(re.compile("^503")).wait_for()
    box.get_by_role("button", name=re.compile("retry", re.I)).click()
    page.get_by_text("2 of 2").wait_for()


@pytest.mark.long
def test_an_answer_that_breaks_off_keeps_its_words(page):
    ask(page, "midway")
    page.get_by_text("The model broke.").wait_for()
    expect(page.get_by_role("log").get_by_text("So far")).to_be_visible()


@pytest.mark.long
def test_the_request_is_shown_as_code_that_another_program_runs(visit, page):
    ask(page, "hello there")
    answered(page, "You said: hello there").get_by_role("button", name="Show as code").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("pre")).to_contain_text(f'base_url="{visit.url}/v1"')
    dialog.get_by_role("button", name="JavaScript").click()
    dialog.get_by_text("responses.create({").wait_for()
    dialog.get_by_role("button", name="curl").click()
    dialog.get_by_text("-d '{").wait_for()
    dialog.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith(f"curl {visit.url}/v1/responses")


@pytest.mark.long
def test_a_chat_is_renamed_and_deleted(page, url):
    ask(page, "rename me")
    answered(page, "You said: rename me")
    page.get_by_role("button", name="Rename or delete “rename me”").click()
    page.get_by_label("Title").fill("A better name")
    page.get_by_label("Title").press("Enter")
    page.get_by_role("link", name=re.compile("A better name")).wait_for()
    expect(page).to_have_url(re.compile("resp_"))
    root = page.url.rpartition("/")[2]
    page.get_by_role("button", name="Rename or delete “A better name”").click()
    page.get_by_role("button", name="Delete the chat").click()
    page.get_by_role("heading", name="Ask something").wait_for()
    with urlopen(f"{url}/v1/responses/roots") as answer:
        assert root not in answer.read().decode()


@pytest.mark.long
def test_the_whole_chat_works_by_keyboard_alone(visit):
    page = visit.go("chat").page
    page.get_by_role("button", name="Model: parrot").wait_for()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("ask by keys")
    page.keyboard.press("Enter")
    answered(page, "You said: ask by keys")
    page.keyboard.press("ArrowUp")
    question = page.get_by_label("Edit the question").and_(page.locator("textarea"))
    expect(question).to_be_focused()
    expect(question).to_have_value("ask by keys")
    page.keyboard.press("End")
    page.keyboard.type(" again")
    page.keyboard.press("Enter")
    answered(page, "You said: ask by keys again")
    page.keyboard.press("Control+Shift+o")
    page.get_by_role("heading", name="Ask something").wait_for()
    page.get_by_role("button", name="Model: parrot").press("Enter")
    expect(page.get_by_role("combobox", name="Find a model")).to_be_focused()
    page.keyboard.type("plai")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Model: plain").wait_for()


@pytest.mark.long
@pytest.mark.parametrize("colour_scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_chat(visit, page, colour_scheme):
    page.emulate_media(color_scheme=colour_scheme)
    ask(page, "When is the ferry?")
    answered(page, "The last boat").locator(".katex").first.wait_for()
    ask(page, "the tides")
    answered(page, "The tide turns.")
    assert axe_findings(page, packages().folder) == []


@pytest.mark.long
def test_what_is_written_from_right_to_left_is_shown_so_and_long_words_fit_a_phone(browser, url):
    with contextlib.closing(Visit(browser, url, viewport={"width": 390, "height": 844})) as visit:
        page = visit.go("chat").page
        page.get_by_role("button", name="Model: parrot").wait_for()
        direction = "each => getComputedStyle(each).direction"
        page.get_by_label("Message", exact=True).fill("مرحبا")
        assert page.get_by_label("Message", exact=True).evaluate(direction) == "rtl"
        ask(page, f"مرحبا https://example.com/{'long' * 60}")
        article = answered(page, "Plain English.")
        shown = {each.inner_text(): each.evaluate(direction) for each in article.locator(".bubble, .words p, .words li, .words pre").all()}
        assert [found for text, found in sorted(shown.items()) if "print(1)" in text or "Plain" in text] == ["ltr", "ltr"]
        assert list(shown.values()).count("rtl") == 3  # the question, a paragraph that begins with code, and the list
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.long
def test_on_a_phone_the_menu_and_the_tabs_are_at_hand(browser, url):
    visit = Visit(browser, url, viewport={"width": 390, "height": 844}, has_touch=True)
    page = visit.go("chat").page
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("button", name="New chat").first.click()
    ask(page, "on a phone")
    answered(page, "You said: on a phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(page.get_by_label("Message", exact=True)).to_have_css("font-size", "16px")
    visit.close()
