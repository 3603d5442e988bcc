"""Talk: a spoken conversation in a real browser, with a microphone into which the test speaks."""

import contextlib
import json

import pytest

from antiphon.server.processes.run import background_server
from support.console.browser import Visit, axe_findings, expect, until
from support.console.node import packages
from support.console.sound import DEPRECATED, EAR, MICROPHONE, heard, loud_part, say, tone, wav
from support.server.aloud import DEAF, RATE_HZ, WEIGHTS, WORDS, errors_between, plain, recording, silence
from support.server.one_place import serving_one_place
from support.server.scripted_server import configured

CALL = {"call": "find_lighthouse", "arguments": {"near": "Brest"}, "call_id": "call_1"}
LONG = "Paris has no lighthouse at sea but the tower carries a beam"

MODELS = {
    "host": {
        "engine": "scripted",
        "hears": [{"turn": 1, "says": "What is the capital of France?"}, {"says": "And of Spain?"}],
        "answers": [
            {"to": "result", "say": "It is {input}"},
            {"when": "lighthouse", "lines": [CALL]},
            {"when": "France", "lines": [{"text": "It is Paris."}]},
            {"when": "Spain", "lines": [{"text": "It is Madrid."}]},
            {"when": "", "say": "You said: {input}"},
        ],
    },
    "tower": {
        "engine": "scripted",
        "hears": [{"turn": 1, "says": "Tell me about lighthouses."}, {"says": "Stop."}],
        "answers": [
            {"when": "Stop", "lines": [{"text": "Fine."}]},
            {"when": "", "lines": [{"text": LONG, "aloud_ms": 20_000}]},
        ],
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("talk"), MODELS)) as url:
        yield url


def opened(visit, model="host", microphone=MICROPHONE, **options):
    """The tab with a model, before anything is pressed."""
    visit.context.add_init_script(EAR)
    if microphone:
        visit.context.add_init_script(microphone)
    visit.expect(DEPRECATED)
    chosen = {f"talk.{name}": value for name, value in options.items()}
    visit.page.add_init_script(
        f"localStorage.setItem('antiphon.models', JSON.stringify({{talk: {model!r}}}));"
        f"localStorage.setItem('antiphon.options', JSON.stringify({chosen!r}));"
    )
    page = visit.go("talk").page
    page.get_by_role("button", name=f"Model: {model}").wait_for()
    return page


def big(page, name):
    """The big button, once it says this."""
    return page.locator("button.big").filter(has_text=name)


def begin(page, ready="Listening"):
    big(page, "Talk").click()
    big(page, ready).wait_for()


def loud_s(page):
    """Seconds from the first to the last loud sample that was played."""
    samples, rate = heard(page)
    return len(loud_part(samples, rate, 0)) / 2 / max(1, rate)


def pieces(sent):
    return of_type(sent, "input_audio_buffer.append")


def of_type(sent, name):
    return [event for event in sent if event["type"] == name]


def type_in(page, text):
    field = page.get_by_label("Say it by typing")
    field.fill(text)
    field.press("Enter")


def captions(page):
    return page.get_by_role("log", name="Captions")


def test_a_spoken_question_is_answered_aloud_with_captions_and_latencies(visit):
    page = opened(visit)
    begin(page)
    say(page, tone(0.8))
    captions(page).get_by_text("What is the capital of France?").wait_for()
    captions(page).get_by_text("It is Paris.").wait_for()
    captions(page).get_by_text("sound").wait_for()
    big(page, "Listening").wait_for()
    until(page, lambda: loud_s(page) > 0.62)  # 12 characters of 60 ms
    page.get_by_text("to the first sound").wait_for()
    page.get_by_role("button", name="End", exact=True).click()
    big(page, "Talk").wait_for()


def sent_events(page):
    """What the page sends from now on by WebSocket. The browser tells of a message later than the page shows what it did."""
    events = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda text: events.append(json.loads(text))))
    return events


def test_speaking_over_an_answer_silences_it_and_strikes_out_what_was_not_heard(visit):
    page = opened(visit, "tower")
    sent = sent_events(page)
    begin(page)
    say(page, tone(0.5))
    captions(page).locator("mark").wait_for()
    say(page, tone(0.5))
    captions(page).get_by_text("cut off by you, silent after").wait_for()
    captions(page).get_by_text("Fine.").wait_for()
    big(page, "Listening").wait_for()
    struck = captions(page).locator("s").inner_text().removeprefix("not heard:").strip()
    assert struck
    assert LONG.endswith(struck)
    (cut,) = until(page, lambda: of_type(sent, "conversation.item.truncate"))
    assert 0 < cut["audio_end_ms"] < 20_000
    samples, rate = heard(page)
    fine_ms = len("Fine.") * 60
    loud_ms = sum(abs(sample) > 600 for sample in samples) * 1000 / rate
    assert loud_ms < cut["audio_end_ms"] + fine_ms + 100


MARK = """() => {
    const played = () => __heard.parts.reduce((sum, part) => sum + part.length, 0);
    const speak = window.__say;
    window.__say = async (wav) => { await speak(wav); window.__marks = {spoke: played()}; };
    const read = Object.getOwnPropertyDescriptor(MessageEvent.prototype, 'data').get;
    Object.defineProperty(MessageEvent.prototype, 'data', {get() {
        const data = read.call(this);
        const isStart = typeof data === 'string' && data.includes('input_audio_buffer.speech_started');
        if (window.__marks && isStart) window.__marks.told ??= played();
        return data;
    }});
}"""
"""Notes how much was played when the person began to speak, and when the page was told so."""


def first_quiet(page, told, least_ms=100):
    """The sample at which what was played falls silent for so long, and the rate; None if it does not."""
    samples, rate = heard(page)
    end, least = told, rate * least_ms // 1000
    for at in range(told, len(samples)):
        if abs(samples[at]) > 600:
            end = at + 1
        elif at - end >= least:
            return end, rate
    return None


@pytest.mark.long
def test_how_long_an_answer_sounds_on_when_one_speaks_over_it(visit, record_property):
    page = opened(visit, "tower")
    begin(page)
    page.evaluate(MARK)
    say(page, tone(0.5))
    captions(page).locator("mark").wait_for()
    until(page, lambda: loud_s(page) > 1)
    say(page, tone(0.5))
    captions(page).get_by_text("cut off by you, silent after").wait_for()
    captions(page).get_by_text("Fine.").wait_for()
    marks = page.evaluate("window.__marks")
    # A pause of 100 ms parts it from the next answer. Where the page has stood still there is none before that one's end, which comes.
    quiet, rate = until(page, lambda: first_quiet(page, marks["told"]))
    after_voice_ms, after_event_ms = ((quiet - marks[name]) * 1000 / rate for name in ("spoke", "told"))
    assert quiet >= marks["told"] >= marks["spoke"] > 0
    record_property(
        "report", f"barge-in: silent {after_event_ms:.0f} ms after speech_started, {after_voice_ms:.0f} ms after the first sound"
    )


@pytest.mark.long
def test_push_to_talk_commits_when_space_is_let_go(visit):
    page = opened(visit, turns="hold")
    sent = sent_events(page)
    begin(page, "Hold to talk")
    page.evaluate(
        "for (const type of ['keydown', 'keyup']) document.body.dispatchEvent(new KeyboardEvent(type, {key: ' ', bubbles: true}))"
    )
    page.get_by_text("Hold it while you speak.").wait_for()
    page.keyboard.down("Space")
    big(page, "Hearing you").wait_for()
    say(page, tone(0.6))
    until(page, lambda: len(pieces(sent)) > 15)
    page.keyboard.up("Space")
    captions(page).get_by_text("It is Paris.").wait_for()
    big(page, "Hold to talk").wait_for()
    until(page, lambda: of_type(sent, "response.create"))
    assert len(of_type(sent, "input_audio_buffer.commit")) == len(of_type(sent, "response.create")) == 1
    assert sent[0]["session"]["audio"]["input"]["turn_detection"] is None
    appended = len(pieces(sent))
    say(page, tone(0.3))
    big(page, "Hold to talk").hover()
    page.mouse.down()
    big(page, "Hearing you").wait_for()
    until(page, lambda: len(pieces(sent)) > appended + 10)
    page.mouse.up()
    captions(page).get_by_text("It is Madrid.").wait_for()


@pytest.mark.long
def test_a_call_waits_for_the_result_that_a_person_types(visit):
    page = opened(visit, dialect="beta")
    sent = sent_events(page)
    page.get_by_text("Functions and MCP servers").click()
    page.get_by_role("button", name="Use an example").click()
    begin(page)
    asked = until(page, lambda: of_type(sent, "session.update"))[0]["session"]
    assert asked["tools"][0]["name"] == "find_lighthouse"
    assert asked["turn_detection"]["type"] == "server_vad"
    type_in(page, "Where is the next lighthouse?")
    card = page.get_by_role("region", name="Call of find_lighthouse")
    card.get_by_text("Brest").wait_for()
    card.get_by_label("Result to give back").fill("Saint-Mathieu")
    card.get_by_label("Result to give back").press("Enter")
    card.get_by_text("was answered").wait_for()
    captions(page).get_by_text("It is Saint-Mathieu").wait_for()


@pytest.mark.long
def test_a_call_by_webrtc_is_answered_aloud(visit):
    page = opened(visit, line="webrtc")
    begin(page)
    say(page, tone(0.8))
    captions(page).get_by_text("It is Paris.").wait_for()
    captions(page).get_by_text("sound").wait_for()
    big(page, "Listening").wait_for()
    until(page, lambda: loud_s(page) > 0.5)
    page.get_by_role("button", name="End", exact=True).click()
    big(page, "Talk").wait_for()


NO_MICROPHONE = """navigator.mediaDevices.getUserMedia = async () => {
  throw new DOMException('', sessionStorage.next ?? 'NotAllowedError');
};"""


@pytest.mark.long
def test_each_failure_of_the_microphone_is_explained(visit):
    page = opened(visit, microphone=NO_MICROPHONE)
    told = {
        "NotAllowedError": "The microphone is blocked for this page",
        "NotFoundError": "There is no microphone",
        "NotReadableError": "Another program uses the microphone",
        "OverconstrainedError": "The microphone that was chosen is gone",
    }
    for name, words in told.items():
        page.evaluate("name => sessionStorage.next = name", name)
        page.locator("button.big").click()
        alert = page.get_by_role("alert").filter(has_text=words)
        alert.get_by_text(name).wait_for()
        big(page, "Try again").wait_for()


@pytest.mark.long
def test_a_browser_that_has_nothing_to_play_on_says_so(visit):
    visit.context.add_init_script("AudioContext.prototype.resume = () => new Promise(() => undefined)")
    page = opened(visit, microphone=None)
    big(page, "Talk").click()
    page.get_by_role("alert").filter(has_text="The browser can play no sound").get_by_text("InvalidStateError").wait_for()
    big(page, "Try again").wait_for()


@pytest.mark.long
def test_all_of_it_works_by_keyboard_alone(visit):
    page = opened(visit, "tower")
    page.keyboard.press("Space")
    big(page, "Listening").wait_for()
    page.get_by_role("status").get_by_text("Listening").wait_for()
    page.keyboard.press("m")
    big(page, "Muted").wait_for()
    page.keyboard.press("m")
    big(page, "Listening").wait_for()
    field = page.get_by_label("Say it by typing")
    for _ in range(60):
        page.keyboard.press("Tab")
        if field.evaluate("field => field === document.activeElement"):
            break
    expect(field).to_be_focused()
    page.keyboard.type("Tell me more")
    page.keyboard.press("Enter")
    captions(page).locator("mark").wait_for()
    page.keyboard.press("Escape")
    captions(page).get_by_text("stopped").wait_for()
    big(page, "Listening").wait_for()
    page.get_by_label("Say it by typing").blur()
    page.keyboard.press("Space")
    big(page, "Talk").wait_for()


@pytest.mark.long
def test_a_line_that_was_lost_is_taken_up_again_with_what_was_said(visit):
    lines, sent = [], []

    page = visit.page
    lost = page.get_by_role("status").get_by_text("The line was lost, coming back")

    def through(route):
        if lines:
            lost.wait_for()  # it is not shown any longer than until there is a line
        server = route.connect_to_server()
        lines.append(route)
        route.on_message(lambda text: (sent.append(json.loads(text)), server.send(text)))

    page.route_web_socket("**/v1/realtime*", through)
    opened(visit)
    begin(page)
    type_in(page, "I live in France")
    captions(page).get_by_text("It is Paris.").wait_for()
    big(page, "Listening").wait_for()
    sent.clear()
    lines[0].close(code=1012)
    until(page, lambda: len(lines) == 2)
    big(page, "Listening").wait_for()
    until(page, lambda: len(of_type(sent, "conversation.item.create")) >= 2)
    again = [event["item"]["content"][0]["text"] for event in of_type(sent, "conversation.item.create")]
    assert again == ["I live in France", "It is Paris."]


@pytest.mark.long
def test_the_line_is_shown_while_all_places_are_taken(visit):
    lines = []
    page = visit.page
    page.route_web_socket("**/v1/realtime*", lambda route: lines.append(route))
    opened(visit)
    big(page, "Talk").click()
    page.get_by_role("status").get_by_text("Connecting").wait_for()
    until(page, lambda: lines)
    told = {"type": "antiphon.queued", "ticket_id": "t_1", "queue_length": 5}
    lines[0].send(json.dumps({**told, "position": 3, "estimated_wait_s": None}))
    big(page, "3rd").wait_for()
    card = page.get_by_role("region", name="The line")
    card.get_by_text("no estimate yet").wait_for()
    lines[0].send(json.dumps({**told, "position": 2, "estimated_wait_s": 40}))
    card.get_by_text("about 40 s").wait_for()
    card.get_by_role("button", name="Leave").click()
    big(page, "Talk").wait_for()


@pytest.mark.long
def test_a_server_tool_asks_to_be_allowed_and_a_key_allows_it(visit):
    lines, sent = [], []
    page = visit.page

    def answered(route):
        lines.append(route)
        route.on_message(lambda text: sent.append(json.loads(text)))

    page.route_web_socket("**/v1/realtime*", answered)
    opened(visit)
    big(page, "Talk").click()
    until(page, lambda: lines and sent)
    item = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "lights", "name": "switch_on", "arguments": "{}"}
    call = {"id": "mcp_1", "type": "mcp_call", "server_label": "lights", "name": "switch_on", "arguments": "{}"}
    for event in (
        {"type": "session.updated", "session": {}},
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        {"type": "response.output_item.added", "response_id": "resp_1", "item": item},
        {"type": "response.output_item.done", "response_id": "resp_1", "item": item},
        {"type": "response.done", "response": {"id": "resp_1", "status": "completed"}},
    ):
        lines[0].send(json.dumps(event))
    page.get_by_role("region", name="Approval of switch_on").press("a")
    until(page, lambda: any("item" in event for event in sent))
    assert next(event["item"] for event in sent if "item" in event) == {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": True,
    }
    for event in (
        {"type": "response.created", "response": {"id": "resp_2", "status": "in_progress"}},
        {"type": "response.output_item.added", "response_id": "resp_2", "item": call},
        {"type": "response.output_item.done", "response_id": "resp_2", "item": {**call, "output": "It is on."}},
        {"type": "response.done", "response": {"id": "resp_2", "status": "completed"}},
    ):
        lines[0].send(json.dumps(event))
    done = page.get_by_role("region", name="Call of switch_on").filter(has_text="done")
    done.get_by_text("Result").click()
    done.get_by_text("It is on.").wait_for()


@pytest.mark.long
def test_axe_finds_nothing_in_a_conversation(visit):
    page = opened(visit)
    page.get_by_text("Functions and MCP servers").click()
    page.get_by_role("button", name="Use an example").click()
    begin(page)
    type_in(page, "Where is the next lighthouse?")
    page.get_by_role("region", name="Call of find_lighthouse").wait_for()
    for colour_scheme in ("light", "dark"):
        page.emulate_media(color_scheme=colour_scheme)
        assert axe_findings(page, packages().folder) == []


def top_of(shown):
    return shown.bounding_box()["y"]


def bottom_of(shown):
    return top_of(shown) + shown.bounding_box()["height"]


@pytest.mark.long
def test_a_phone_has_the_button_at_the_thumb_and_settings_in_a_sheet(browser, url):
    with contextlib.closing(Visit(browser, url, viewport={"width": 390, "height": 844})) as visit:
        page = opened(visit)
        begin(page)
        page.get_by_role("button", name="Mute", exact=True).click()
        page.get_by_role("button", name="Unmute", exact=True).wait_for()
        until(page, lambda: top_of(big(page, "Muted")) > bottom_of(captions(page)) - 1)
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("dialog", name="Settings").get_by_role("button", name="Hold to talk").click()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Unmute", exact=True).click()
        big(page, "Hold to talk").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.long
@pytest.mark.weights
def test_what_sounds_is_what_the_captions_say(browser, tmp_path):
    answer = "Two owls and a hen, four larks and a wren, have all built their nests in my beard."
    models = {"oracle": {"engine": "scripted", "answers": [{"say": answer}], **DEAF}}
    config = configured(tmp_path, models, **{"models_dir": str(WEIGHTS), "logging.level": "error"})
    with background_server(config) as url, contextlib.closing(Visit(browser, url)) as visit:
        page = opened(visit, "oracle")
        begin(page)
        for turn in range(1, 9):  # where a voice is slower than it sounds, its pauses are hard to understand
            say(page, wav(silence(0.3) + recording("cards_005") + silence(1), RATE_HZ))
            captions(page).get_by_text("sound").nth(turn - 1).wait_for()
            big(page, "Listening").wait_for()
            expect(captions(page).get_by_text(answer)).to_have_count(turn)
            errors = errors_between(plain(answer), plain(written_down(page, url)))
            if errors <= len(plain(answer)) // 4:
                break
        else:
            pytest.fail(f"{errors} words are wrong")
        said = captions(page).locator("p").first.inner_text()
        assert errors_between(plain(WORDS["cards_005"]), plain(said)) <= 3
        page.get_by_role("button", name="End", exact=True).click()


def written_down(page, url):
    """What the server hears in what was played since the last time."""
    samples, rate = heard(page)
    page.evaluate("__heard.parts.length = 0")
    file = {"name": "heard.wav", "mimeType": "audio/wav", "buffer": wav(loud_part(samples, rate), rate)}
    reply = page.request.post(f"{url}/v1/audio/transcriptions", multipart={"file": file, "model": "whisper-1"})
    return reply.json()["text"]


@pytest.mark.long
def test_who_waits_in_a_real_queue_sees_its_place_and_then_talks(browser, tmp_path):
    script = {"hears": [{"says": "Hello."}], "answers": [{"when": "", "say": "You said: {input}"}]}
    with serving_one_place(tmp_path, script, **{"queue.update_s": 0.2}) as place, contextlib.ExitStack() as stack:
        first, second, third = (Visit(browser, place.url) for _ in range(3))
        for each in (first, second, third):
            stack.callback(each.close)
            opened(each, "far")
        begin(first.page)
        big(second.page, "Talk").click()
        big(second.page, "1st").wait_for()
        big(third.page, "Talk").click()
        big(third.page, "2nd").wait_for()
        card = third.page.get_by_role("region", name="The line")
        card.get_by_text("of 2 in the line").wait_for()
        card.get_by_text("about").wait_for()
        big(first.page, "Listening").click()
        big(second.page, "Listening").wait_for()
        big(third.page, "1st").wait_for()
        card.get_by_role("button", name="Leave").click()
        big(third.page, "Talk").wait_for()
        type_in(second.page, "Hi")
        captions(second.page).get_by_text("You said: Hi").wait_for()


@pytest.mark.long
def test_a_call_by_webrtc_waits_in_the_same_queue_and_is_refused_by_a_full_one(browser, tmp_path):
    script = {"hears": [{"says": "Hello."}], "answers": [{"when": "", "say": "You said: {input}"}]}
    with serving_one_place(tmp_path, script, **{"queue.size": 1, "queue.update_s": 0.2}) as place, contextlib.ExitStack() as stack:
        first, second, third = (Visit(browser, place.url) for _ in range(3))
        for each in (first, second, third):
            stack.callback(each.close)
            opened(each, "far", line="webrtc")
        begin(first.page)
        big(second.page, "Talk").click()
        big(second.page, "1st").wait_for()
        card = second.page.get_by_role("region", name="The line")
        card.get_by_text("of 1 in the line").wait_for()
        big(third.page, "Talk").click()
        third.page.get_by_role("alert").get_by_text("queue_full").wait_for()
        card.get_by_role("button", name="Leave").click()
        big(second.page, "Talk").wait_for()
        until(second.page, lambda: not second.page.request.get(f"{place.url}/queue").json()["items"])
        big(third.page, "Try again").click()
        big(third.page, "1st").wait_for()
        big(first.page, "Listening").click()
        big(third.page, "Listening").wait_for()
        say(third.page, tone(0.8))
        captions(third.page).get_by_text("You said: Hello.").wait_for()
