"""What the server's tools do, as cards of the chat: real searches, code, pictures and MCP servers on this machine."""

import asyncio
import contextlib
import queue
import re
import threading

import openai
import pytest
from aiohttp import web

from antiphon.config.routing import EMBEDDING_MODEL
from antiphon.server.processes.run import background_server
from support.console.browser import Visit, axe_findings, expect, until
from support.console.node import packages
from support.embeddings.tiny_model import write_tiny_model
from support.server.scripted_server import configured
from support.tools.images_server import b64, images_server, png
from support.tools.mcp_servers import running_servers

PAGE = "<title>Owls of Texel</title><h1>Owls</h1><p>The barn owl hears a mouse under the snow.</p>"

CODE = """import math, struct, zlib
class Wave:
    def _repr_png_(self):
        width, height = 320, 120
        rows = [bytearray(b"\\0" + b"\\xff" * width) for _ in range(height)]
        for x in range(width):
            y = int(60 + 50 * math.sin(x / 25))
            for d in range(3):
                rows[y + d][x + 1] = 40
        def chunk(kind, content):
            return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")
print("the sum is", sum(range(10)))
Wave()
"""

SCRIPT = {
    "answers": [
        {"to": "result", "when": "barn owl", "say": "It hears a mouse under the snow [web:1]."},
        {"to": "result", "when": "owls hunt", "say": "Owls hunt at night 【1】."},
        {"to": "result", "say": "Done."},
        {"when": "look up", "lines": [{"call": "web_search", "arguments": {"query": "barn owl snow"}}]},
        {"when": "my files", "lines": [{"call": "file_search", "arguments": {"queries": ["when do owls hunt"]}}]},
        {"when": "wave", "lines": [{"call": "python", "arguments": {"code": CODE}}]},
        {"when": "mistake", "lines": [{"call": "python", "arguments": {"code": "1 / 0"}}]},
        {"when": "draw", "lines": [{"call": "image_generation", "arguments": {"prompt": "a lighthouse at dusk"}}]},
        {"when": "add", "lines": [{"call": "add", "namespace": "sums", "arguments": {"a": 1, "b": 2}}]},
        {"when": "boom", "lines": [{"call": "boom", "namespace": "sums", "arguments": {}}]},
    ]
}


@contextlib.contextmanager
def pictures_in_a_thread():
    """A server of pictures, each 240 by 160 dots; its address."""
    addresses, ended = queue.SimpleQueue(), threading.Event()

    async def answer(_request, _fields):
        return web.json_response({"created": 1, "data": [{"b64_json": b64(png(240, 160, 90)), "revised_prompt": "a lighthouse"}]})

    async def serve():
        async with images_server() as server:
            server.answer = answer
            addresses.put(server.base_url)
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield addresses.get(timeout=120)
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    (folder / "pages").mkdir()
    (folder / "pages" / "owls.html").write_text(PAGE)
    write_tiny_model(folder / "models" / EMBEDDING_MODEL)
    with pictures_in_a_thread() as pictures, running_servers() as mcp:
        settings = {
            "logging.level": "error",
            "models_dir": str(folder / "models"),
            "server.fetch_networks": ["127.0.0.0/8"],
            "tools.code_interpreter.sandbox": "both",
            "tools.web_search.provider": "local",
            "tools.web_search.folders": [{"path": str(folder / "pages"), "url": "https://birds.example/"}],
            "tools.images": [{"model": "brush", "base_url": pictures}],
            "tools.mcp": [{"label": "sums", "url": mcp.url_by_kind["streamable-2026"]}],
        }
        config = configured(tmp_path_factory.mktemp("home"), {"parrot": {"engine": "scripted", **SCRIPT}}, **settings)
        with background_server(config, is_persistent=True) as url:
            yield url


@pytest.fixture
def page(visit):
    page = visit.go("chat").page
    page.get_by_role("button", name="Model: parrot").wait_for()
    return page


def turn_on(page, *names):
    page.get_by_role("button", name="Tools").click()
    for name in names:
        page.get_by_label(name, exact=True).check()
    page.keyboard.press("Escape")


def ask(page, text):
    field = page.get_by_label("Message", exact=True)
    field.fill(text)
    field.press("Enter")


def answered(page, text):
    article = page.get_by_role("article").filter(has_text=text).last
    article.get_by_role("button", name="Answer again").wait_for()
    return article


def card(article, name):
    return article.locator(".tool").filter(has_text=name)


def shown_twice(page, text):
    """The article as it was streamed, and as the server has it after a reload."""
    yield answered(page, text)
    page.reload()
    yield answered(page, text)


def ask_all(page, *questions):
    for number, question in enumerate(questions):
        ask(page, question)
        page.get_by_role("article").nth(number).get_by_role("button", name="Answer again").wait_for()


def width_of(picture):
    """The width of a picture in its own dots, once it is there."""
    return picture.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }")


def test_a_web_search_shows_its_question_and_its_sources(page):
    turn_on(page, "Web search")
    ask(page, "look up the owl")
    for article in shown_twice(page, "It hears a mouse"):
        search = card(article, "Web search")
        search.get_by_text("barn owl snow").wait_for()
        search.get_by_text("More").click()
        source = search.get_by_role("link", name="https://birds.example/owls.html")
        expect(source).to_have_attribute("href", "https://birds.example/owls.html")
        expect(article.get_by_role("link", name="1", exact=True)).to_have_attribute("href", "https://birds.example/owls.html")
        expect(article.get_by_role("list", name="Sources")).to_have_text("Owls of Texel")
        expect(article.get_by_role("link", name="birds.example", exact=True)).to_have_count(0)  # the number says it


@pytest.mark.long
def test_a_file_search_shows_what_it_found_and_how_well_it_fits(page, url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        store = client.vector_stores.create(name="Bird notes")
        file = client.files.create(file=("owls.md", b"Owls hunt at night. Their feathers make no sound."), purpose="assistants")
        client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id)
    asked = []
    page.route("**/v1/vector_stores?*", lambda route: asked.append(route))  # file search is switched on before the page knows of any store
    page.get_by_role("button", name="Tools").click()
    page.get_by_label("File search", exact=True).check()
    page.get_by_text("There are no vector stores yet.").wait_for()
    until(page, lambda: asked)
    asked[0].continue_()
    expect(page.get_by_label("Bird notes")).to_be_checked()
    page.keyboard.press("Escape")
    ask(page, "search my files")
    for article in shown_twice(page, "Owls hunt at night"):
        search = card(article, "File search")
        search.get_by_text("when do owls hunt").wait_for()
        search.get_by_text("More").click()
        expect(search.locator("details")).to_contain_text(re.compile(r"owls\.md \d\.\d\d\s*Owls hunt at night\. Their feathers"))
        expect(article.get_by_role("list", name="Sources")).to_have_text("owls.md")


@pytest.mark.long
def test_code_shows_what_it_printed_and_drew(page):
    turn_on(page, "Code interpreter")
    ask(page, "a wave please")
    for article in shown_twice(page, "Done."):
        code = card(article, "Code interpreter")
        expect(code.locator("pre.logs")).to_have_text("the sum is 45")
        assert width_of(code.get_by_alt_text("Made by the code")) == 320
        code.get_by_text("Code", exact=True).click()
        code.get_by_text("class Wave:").wait_for()


@pytest.mark.long
def test_code_that_fails_shows_its_error(page):
    turn_on(page, "Code interpreter")
    ask(page, "make a mistake")
    expect(card(answered(page, "Done."), "Code interpreter").locator("pre.logs")).to_contain_text("ZeroDivisionError")


@pytest.mark.long
def test_a_picture_that_was_made_is_shown(page):
    turn_on(page, "Image generation")
    ask(page, "draw a lighthouse")
    for article in shown_twice(page, "Done."):
        assert width_of(card(article, "Image generation").get_by_alt_text("The picture that was made")) == 240


@pytest.mark.long
def test_the_tools_of_a_server_are_listed_with_what_they_do_and_calls_with_their_results(page):
    turn_on(page, "sums")
    ask(page, "add them")
    page.get_by_role("button", name="Allow in this chat").click()
    for _ in shown_twice(page, "Done."):
        listing = page.locator(".tool").filter(has_text="Tools listed").first
        listing.get_by_text("on server “sums”").wait_for()
        listing.get_by_text("More").click()
        listing.locator("details b", has_text=re.compile("^add$")).wait_for()
        call = page.locator(".tool").filter(has=page.locator("b", has_text=re.compile("^add$"))).last
        call.get_by_text("Arguments and result").click()
        expect(call.locator("pre.result")).to_have_text("3")


@pytest.mark.long
@pytest.mark.parametrize("colour_scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_cards(visit, page, colour_scheme):
    page.emulate_media(color_scheme=colour_scheme)
    turn_on(page, "Code interpreter", "Image generation", "Web search")
    ask_all(page, "a wave please", "draw a lighthouse", "look up the owl")
    folded = page.locator(".tool details:not([open]) > summary")
    for left in reversed(range(folded.count())):
        folded.last.click()
        expect(folded).to_have_count(left)
    assert axe_findings(page, packages().folder) == []


@pytest.mark.long
def test_cards_fit_a_phone(browser, url):
    visit = Visit(browser, url, viewport={"width": 390, "height": 844}, has_touch=True)
    page = visit.go("chat").page
    page.get_by_role("button", name="Model: parrot").wait_for()
    turn_on(page, "Code interpreter", "Image generation", "Web search")
    ask_all(page, "a wave please", "draw a lighthouse", "look up the owl")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    log = page.get_by_role("log")
    assert log.evaluate("log => log.scrollWidth <= log.clientWidth")
    visit.close()
