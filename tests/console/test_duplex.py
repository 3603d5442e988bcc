"""Full duplex in the page, with a camera and a microphone that the browser makes up: line, speech, pictures, a lost network, chat."""

import contextlib
import json
import select
import socket
import threading
import time
import urllib.request
from urllib.parse import urlsplit

import pytest

from antiphon.server.processes.run import background_server
from support.console.browser import Visit, axe_findings, expect, until
from support.console.node import packages
from support.server.scripted_server import configured

LONG = [{"text": "I see a lighthouse. "}, {"aloud_ms": 30_000}]


def scripted(**duplex):
    """A model that hears nothing in the fake microphone's beeps."""
    return {"engine": "scripted", "speech": [], "answers": [{"say": "You said: {input}"}], "duplex": duplex}


MODELS = {
    "talker": scripted(says=[{"at": 2, "lines": LONG}]),
    "single": {**scripted(), "sessions": 1},
    "yielding": {**scripted(says=[{"at": 2, "lines": LONG}]), "speech": [{"at_ms": 1200, "until_ms": 60_000}]},
    "seeing": scripted(says=[{"at": 8, "lines": [{"text": "I see it. ", "aloud_ms": 300}]}]),
    "flat": {"engine": "scripted", "abilities": {"listens": False}, "answers": [{"say": "You said: {input}"}]},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    settings = {
        "logging.level": "error",
        "speech.enabled": False,
        "recording.when": "consent",
        "minicpmo.audio_s": 2,
        "minicpmo.warning_s": 1,
    }
    with background_server(configured(tmp_path_factory.mktemp("duplex"), MODELS, **settings), is_persistent=True) as url:
        yield url


class Frames:
    """What a page's WebSockets bring and take, as events."""

    def __init__(self, page) -> None:
        self.sent, self.came = [], []
        self._page = page
        page.on("websocket", self._watch)

    def _watch(self, line) -> None:
        line.on("framesent", lambda text: self.sent.append(json.loads(text)))
        line.on("framereceived", lambda text: self.came.append(json.loads(text)))

    def types(self) -> list[str]:
        return [event["type"] for event in self.came]

    def appended(self, count: int) -> list[dict]:
        """What was appended, once there is so much of it: the browser tells of its messages later than the page shows what they did."""

        def inputs() -> list[dict]:
            return [event["input"] for event in self.sent if event["type"] == "input.append"]

        until(self._page, lambda: len(inputs()) >= count)
        return inputs()


def at(visit, model, mode="video"):
    """The tab in this mode, with this model chosen."""
    visit.page.add_init_script(f"localStorage.setItem('antiphon.models', JSON.stringify({{duplex: '{model}', duplex_chat: '{model}'}}))")
    visit.go(f"duplex/{mode}").page.get_by_role("button", name=f"Model: {model}").wait_for()
    return visit.page


def begin(visit, model, mode="video"):
    """A session, or a place in the line."""
    page = at(visit, model, mode)
    page.get_by_role("button", name="Start").click()
    return page


def state(page, word):
    return page.locator(".state").get_by_text(word, exact=True)


@pytest.mark.long
def test_who_waits_sees_the_place_and_gets_the_turn(browser, url):
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(contextlib.closing(Visit(browser, url))) for _ in range(3))
        state(begin(first, "single"), "Listening").wait_for()
        begin(second, "single").get_by_text("Everybody is being served").wait_for()
        frames = Frames(third.page)
        page = begin(third, "single")
        line = page.get_by_role("region", name="Everybody is being served")
        line.get_by_text("2nd").wait_for()
        line.get_by_text("of 2").wait_for()
        line.get_by_text("about").wait_for()
        expect(page).to_have_title("2nd in line · antiphon")
        line.get_by_role("button", name="Ring when it is my turn").click()
        line.locator("[aria-pressed=true]").wait_for()
        second.page.get_by_role("button", name="Leave the line").click()
        second.page.get_by_role("button", name="Start").wait_for()
        line.get_by_text("1st").wait_for()
        line.get_by_text("Moved up once").wait_for()
        assert not frames.sent
        first.page.get_by_role("button", name="End", exact=True).click()
        state(page, "Listening").wait_for()
        expect(page.get_by_role("status").filter(has_text="The model listens")).to_have_count(1)
        page.get_by_role("timer", name="Time left").wait_for()


@pytest.mark.long
def test_the_camera_is_seen_before_anything_is_sent(visit):
    frames = Frames(visit.page)
    page = at(visit, "talker")
    page.get_by_role("button", name="Show my camera first").click()
    picture = page.get_by_label("Your camera")
    picture.and_(page.locator(".mirrored")).wait_for()
    page.get_by_role("button", name="Mirror").click()
    picture.and_(page.locator(":not(.mirrored)")).wait_for()
    page.get_by_text("Only you see this yet.").wait_for()
    page.locator("option", has_text="fake_device").first.wait_for(state="attached")  # cameras have names now
    page.get_by_role("button", name="Chat", exact=True).click()
    picture.wait_for(state="detached")
    assert not frames.sent


def test_it_speaks_until_it_is_made_to_listen(visit):
    frames = Frames(visit.page)
    page = begin(visit, "talker")
    state(page, "Speaking").wait_for()
    page.locator(".caption").get_by_text("I see a").wait_for()
    page.keyboard.press("l")
    state(page, "Made to listen").wait_for()
    page.get_by_role("region", name="What the model said").get_by_text("interrupted").wait_for()
    until(page, lambda: any(input.get("force_listen") for input in frames.appended(1)))
    page.get_by_role("button", name="Make it listen", pressed=True).click()
    state(page, "Listening").wait_for()
    appended = frames.appended(1)
    assert {name for input in appended for name in input} <= {"audio", "video_frames", "force_listen"}
    assert "force_listen" not in appended[0]


@pytest.mark.long
def test_a_person_who_speaks_silences_it_at_once(visit):
    frames = Frames(visit.page)
    page = begin(visit, "yielding")
    page.get_by_role("region", name="What the model said").get_by_text("interrupted").wait_for()
    state(page, "Listening").wait_for()
    until(page, lambda: any(event.get("interrupted") for event in frames.came))
    assert [event["kind"] for event in frames.came if event.get("interrupted")] == ["listen"]


@pytest.mark.long
def test_pictures_arrive_at_the_server_and_are_recorded(visit):
    frames, looks = Frames(visit.page), []

    def put_away_later(route):
        rows = route.fetch().json()
        for row in [] if looks else rows["data"]:
            row["status"] = "live"
        looks.append(rows)
        route.fulfill(json=rows)

    visit.page.route("**/v1/sessions?*", put_away_later)
    page = at(visit, "seeing")
    page.get_by_label("Record this session on the server").check()
    began = time.monotonic()
    page.get_by_role("button", name="Start").click()
    page.get_by_text("picture parts seen").wait_for()
    page.get_by_role("button", name="End", exact=True).click()
    page.get_by_role("link", name="Recording").wait_for()
    assert len(looks) > 1, "it can't be read as long as its session is live"
    took_s = time.monotonic() - began
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    until(page, lambda: "session.created" in frames.types())
    session = next(event["session_id"] for event in frames.came if event["type"] == "session.created")
    assert download.value.suggested_filename == f"{session}.zip"
    with urllib.request.urlopen(f"{visit.url}/v1/sessions/{session}/files/frames/000001.jpg") as reply:
        assert reply.read(2) == b"\xff\xd8"
    pictures = [input for input in frames.appended(1) if "video_frames" in input]
    assert pictures
    assert len(pictures) < took_s / 0.9 + 2  # one a second: a piece of 200 ms has its middle before or after that


class Network:
    """A cable between the page and the server that can be pulled out."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._is_up, self._ends = True, []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self._is_up:
                    near.close()
                    continue
                far = socket.create_connection(self._server)
                self._ends += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), near, far:
            while True:
                for end in select.select([near, far], [], [])[0]:
                    data = end.recv(65_536)
                    if not data:
                        return
                    (far if end is near else near).sendall(data)

    def cut(self) -> None:
        """Whatever is connected breaks off, without a goodbye."""
        self._is_up = False
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def mend(self) -> None:
        self._is_up = True

    def close(self) -> None:
        self.cut()
        self._listener.close()


@pytest.mark.long
def test_a_session_goes_on_after_the_network_was_lost(browser, url):
    with contextlib.closing(Network(url)) as network:
        visit = Visit(browser, network.url)
        visit.expect("ERR_|WebSocket")
        frames = Frames(visit.page)
        page = begin(visit, "talker")
        state(page, "Speaking").wait_for()
        network.cut()
        lost = page.get_by_role("region", name="Network lost")
        lost.get_by_text("s more").wait_for()
        network.mend()
        lost.wait_for(state="detached")
        state(page, "Speaking").wait_for()
        page.get_by_text("lost once").wait_for()
        until(page, lambda: "session.resumed" in frames.types())
        kinds = frames.types()
        assert kinds.count("session.created") == kinds.count("session.resumed") == 1
        numbers = [event["seq"] for event in frames.came if "seq" in event]
        assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
        visit.close()


@pytest.mark.long
def test_the_time_is_told_and_then_up(visit):
    page = visit.page
    warning = page.get_by_role("timer", name="Time left").and_(page.locator(".warn"))

    passed = []

    def through(route):
        server = route.connect_to_server()

        def pass_on(text):
            event = json.loads(text)["type"]
            if event == "session.closed":
                warning.wait_for()  # it is not shown any longer than until this comes
            route.send(text)
            passed.append(event)

        def close(code, reason):
            until(page, lambda: "session.closed" in passed)
            route.close(code=code, reason=reason)

        server.on_message(pass_on)
        server.on_close(close)

    page.route_web_socket("**/v1/realtime*", through)
    begin(visit, "talker", "audio")
    page.get_by_role("heading", name="The time is up").wait_for()
    page.get_by_role("button", name="Begin again").wait_for()


@pytest.mark.long
@pytest.mark.parametrize("colour_scheme", ["light", "dark"])
def test_axe_finds_nothing_before_or_in_a_session(visit, colour_scheme):
    visit.page.emulate_media(color_scheme=colour_scheme)
    page = at(visit, "talker")
    assert axe_findings(page, packages().folder) == []
    page.get_by_role("button", name="Start").click()
    state(page, "Speaking").wait_for()
    assert axe_findings(page, packages().folder) == []


@pytest.mark.long
def test_a_session_is_led_by_keyboard_alone(visit):
    page = at(visit, "single")
    start = page.get_by_role("button", name="Start")
    for _ in range(30):
        page.keyboard.press("Tab")
        if start.evaluate("button => button === document.activeElement"):
            break
    expect(start).to_be_focused()
    page.keyboard.press("Enter")
    state(page, "Listening").wait_for()
    page.keyboard.press("m")
    state(page, "Microphone off").wait_for()
    page.keyboard.press("Control+.")
    page.get_by_role("heading", name="The session is over").wait_for()


@pytest.mark.long
def test_a_chat_keeps_what_was_said_and_any_model_does(visit):
    frames = Frames(visit.page)
    page = at(visit, "flat", "chat")
    log = page.get_by_role("log", name="Conversation")
    for question in ("Hello", "Goodbye"):
        page.get_by_label("Message", exact=True).fill(question)
        page.get_by_label("Message", exact=True).press("Enter")
        log.get_by_text(f"You said: {question}").wait_for()
    asked = frames.appended(2)[1]["messages"]
    assert [message["content"] for message in asked] == ["Hello", "You said: Hello", "Goodbye"]
    page.get_by_role("button", name="End", exact=True).click()
    page.get_by_role("heading", name="The session is over").wait_for()


@pytest.mark.long
def test_a_model_without_full_duplex_says_how_to_get_one(visit):
    page = at(visit, "flat")
    page.get_by_role("heading", name="flat cannot listen and speak at once").wait_for()
    page.get_by_text('engine = "omni"').wait_for()
    expect(page.get_by_role("button", name="Start")).to_have_count(0)
    page.get_by_role("button", name="Use talker").click()
    page.get_by_role("button", name="Start").wait_for()
