"""Pictures and documents on their way to an upstream: fetched here, checked, and sent in the request."""

import asyncio
import base64
from pathlib import Path

import pytest

from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.engine import BuildContext
from antiphon.runtime.core.url_fetch import fetcher
from support.engines.upstreams import Server, ask, before, run, streamed, whole

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
KINDS = {"png": PNG, "jpeg": b"\xff\xd8\xff\xe0" + bytes(20), "webp": b"RIFF\0\0\0\0WEBPVP8 " + bytes(9), "gif": b"GIF89a" + bytes(20)}
HERE = fetcher(["127.0.0.1/32"])


def inline(body, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(body).decode()}"


def sent(*parts, site=b"", fetch=HERE, turn=None, **options):
    """The messages that the upstream gets, or how the request broke; and the paths that were fetched. `SITE` in a URL is the site."""

    async def scenario():
        async with asyncio.timeout(20), Server(site).open() as far, Server(streamed("seen")).open() as server:
            place = BuildContext(weights_folder=Path(), base_folder=Path(), **({"fetch": fetch} if fetch else {}))
            async with before(server, place, **options) as (conversation, heard):
                placed = tuple(_placed(part, f"http://127.0.0.1:{far.port}") for part in parts)
                history = (engine_history.Message("user", placed),) if turn is None else turn(placed)
                conversation.send(commands.Respond(id="resp_1", history=history))
                end = await heard.end_of()
        paths = [head.split()[1] for head, _ in far.asked]
        return (end if isinstance(end, events.ResponseFailed) else server.asked[0][1]["messages"]), paths, f"http://127.0.0.1:{far.port}"

    return run(scenario())


def _placed(part, site):
    if not hasattr(part, "url"):
        return part
    changed = {field: getattr(part, field) for field in part.__struct_fields__}
    return type(part)(**changed | {"url": part.url and part.url.replace("SITE", site)})


def picture(url="SITE/cat.png", **more):
    return engine_history.ImagePart(url=url, **more)


def page(body, kind):
    return whole("200 OK", body, content_type=kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quirks", ["vllm", "sglang", "llamacpp", "ollama", "lmstudio", "generic"])
def test_a_picture_by_address_is_fetched_here_and_sent_in_the_request(kind, quirks):
    messages, paths, _ = sent(
        engine_history.TextPart("What is it?"), picture(detail="high"), site=page(KINDS[kind], "image/x"), quirks=quirks
    )
    assert messages[0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": inline(KINDS[kind], f"image/{kind}"), "detail": "high"}},
    ]
    assert paths == ["/cat.png"]


def test_openai_itself_fetches_pictures_and_whoever_is_told_to():
    for options in ({"quirks": "openai"}, {"quirks": "vllm", "fetch_urls": "upstream"}):
        messages, paths, site = sent(picture(), **options)
        assert messages[0]["content"][0]["image_url"]["url"] == f"{site}/cat.png"
        assert paths == []


def test_openai_fetches_no_pictures_when_it_is_told_not_to():
    messages, paths, _ = sent(picture(), site=page(PNG, "image/png"), quirks="openai", fetch_urls="here")
    assert messages[0]["content"][0]["image_url"]["url"] == inline(PNG)
    assert paths == ["/cat.png"]


def test_what_can_not_fetch_is_not_asked_to():
    messages, _, _ = sent(picture(), site=page(PNG, "image/png"), quirks="ollama", fetch_urls="upstream")
    assert messages[0]["content"][0]["image_url"]["url"] == inline(PNG)


def test_who_calls_itself_openai_is_not_made_to_fetch():
    """Gateways do, and stand in their operator's network."""

    async def scenario():
        listed = whole("200 OK", {"data": [{"id": "m1", "owned_by": "openai"}]})
        async with asyncio.timeout(20), Server(page(PNG, "image/png")).open() as far, Server(listed, streamed("seen")).open() as server:
            place = BuildContext(weights_folder=Path(), base_folder=Path(), fetch=HERE)
            async with before(server, place, quirks="auto") as (conversation, heard):
                conversation.send(
                    commands.Respond(id="resp_1", history=(engine_history.Message("user", (picture(f"http://127.0.0.1:{far.port}/"),)),))
                )
                await heard.end_of()
        (_, nothing), (_, body) = server.asked
        assert nothing is None
        assert body["messages"][0]["content"][0]["image_url"]["url"] == inline(PNG)

    run(scenario())


def test_a_picture_that_a_tool_gave_is_fetched_too():
    def turn(parts):
        return (
            engine_history.Message("user", (engine_history.TextPart("Draw"),)),
            engine_history.ToolCall("c1", "draw", "{}"),
            engine_history.ToolResult("c1", parts),
        )

    messages, _, _ = sent(picture(), site=page(PNG, "image/png"), turn=turn)
    assert messages[-1] == {"role": "user", "content": [{"type": "image_url", "image_url": {"url": inline(PNG), "detail": "auto"}}]}


def test_the_same_address_is_fetched_once():
    _, paths, _ = sent(*[picture()] * 5, picture("SITE/dog.png"), site=page(PNG, "image/png"))
    assert sorted(paths) == ["/cat.png", "/dog.png"]


def test_a_document_by_address_is_fetched_for_whoever_takes_documents():
    pdf = b"%PDF-1.7"
    part = engine_history.FilePart(url="SITE/a/my%20paper.pdf?x=1")
    messages, _, _ = sent(part, site=page(pdf, "application/pdf"), quirks="openai")
    assert messages[0]["content"] == [{"type": "file", "file": {"filename": "my paper.pdf", "file_data": inline(pdf, "application/pdf")}}]
    broke, _, _ = sent(part, site=page(pdf, "application/pdf"), quirks="vllm")
    assert (broke.status, broke.code) == (400, "unsupported_parameter")


def test_a_text_by_address_is_read_out_to_whoever_takes_no_documents():
    part = engine_history.FilePart(url="SITE/a/notes.md")
    messages, paths, _ = sent(part, site=page(b"# Owls", "text/plain"), quirks="vllm")
    assert messages[0]["content"] == '<file name="notes.md">\n# Owls\n</file>\n'
    assert paths == ["/a/notes.md"]


def test_an_image_by_the_address_of_a_document_is_an_image():
    part = engine_history.FilePart(url="SITE/cat.pdf")
    messages, _, _ = sent(part, site=page(b"GIF89a", "application/pdf"), quirks="openai")
    assert messages[0]["content"] == [{"type": "image_url", "image_url": {"url": inline(b"GIF89a", "image/gif"), "detail": "auto"}}]


@pytest.mark.parametrize(
    ("url", "site", "says"),
    [
        ("http://127.0.0.2:8000/", b"", "its address is not public"),
        ("http://169.254.169.254/latest/meta-data", b"", "its address is not public"),
        ("http://[::1]:8000/", b"", "its address is not public"),
        ("SITE/cat.png", whole("302 Found", b"", location="http://127.0.0.2:8000/"), "its address is not public"),
        ("SITE/cat.png", whole("404 Not Found", b""), "status 404"),
        ("SITE/cat.png", page(b"<html>", "text/html"), "of type 'text/html'"),
        ("SITE/cat.png", page(b"<svg/>", "image/svg+xml"), "unsupported image"),
        ("SITE/cat.png", page(b"root:x:0:0", "image/png"), "unsupported image"),
        ("SITE/cat.png", page(b"", "image/png"), "unsupported image"),
        ("SITE/cat.png", b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 99999999\r\n\r\n", "larger than"),
        ("file:///etc/passwd", b"", "can't be given the image"),
        ("ftp://127.0.0.1/x", b"", "can't be given the image"),
    ],
)
def test_what_may_not_be_fetched_or_is_no_picture_is_refused(url, site, says):
    broke, _, _ = sent(picture(url), site=site)
    assert (broke.status, broke.type) == (400, "invalid_request_error")
    assert says in broke.message


def test_nothing_is_fetched_from_this_machine_unless_that_is_allowed():
    broke, paths, _ = sent(picture(), site=page(PNG, "image/png"), fetch=fetcher([]))
    assert (broke.code, broke.param, paths) == ("invalid_url", "image_url", [])
    broke, paths, _ = sent(picture(), site=page(PNG, "image/png"), fetch=None)
    assert (broke.code, paths) == ("invalid_url", [])


def test_no_request_has_endlessly_much_fetched():
    broke, paths, _ = sent(*[picture(f"SITE/{number}.png") for number in range(33)], site=page(PNG, "image/png"))
    assert "at most 32" in broke.message
    assert paths == []


def test_pictures_together_have_a_limit():
    large = page(PNG + bytes(19 << 20), "image/png")
    broke, paths, _ = sent(*[picture(f"SITE/{number}.png") for number in range(12)], site=large)
    assert (broke.code, broke.status) == ("image_file_too_large", 400)
    assert len(paths) < 12


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("data:image/png;base64,####", "invalid_base64_image"),
        ("data:image/png;base64,iVBORw0KGgo", "invalid_base64_image"),
        ("data:image/png;base64,é", "invalid_base64_image"),
        ("data:image/png,iVBORw0KGgo=", "invalid_base64_image"),
        ("data:image/png;base64," + base64.b64encode(b"not one").decode(), "invalid_image_format"),
        ("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(), "invalid_image_format"),
        ("data:image/png;base64,", "invalid_image_format"),
        ("data:image/png;base64," + "A" * (29 << 20), "image_file_too_large"),
    ],
    ids=["no-base64", "cut", "no-ascii", "percent", "other", "svg", "empty", "large"],
)
def test_a_picture_in_the_request_is_one_or_is_refused(url, code):
    broke, _, _ = sent(picture(url))
    assert (broke.status, broke.code, broke.param) == (400, code, "input")


@pytest.mark.parametrize("header", ["data:image/png", "DATA:image/png", "data:image/png;charset=utf-8", "data:"])
def test_a_picture_in_the_request_is_passed_on_as_it_is(header):
    url = header + ";base64," + base64.b64encode(PNG).decode()
    assert sent(picture(url))[0][0]["content"][0]["image_url"]["url"] == url


def test_a_document_in_the_request_is_base64_or_is_refused():
    broke, _, _ = sent(engine_history.FilePart(inline="data:application/pdf;base64,#"), quirks="openai")
    assert (broke.status, broke.code) == (400, "invalid_value")


def test_leaving_stops_the_fetch():
    async def scenario():
        async with asyncio.timeout(20), Server(b"").open() as far, Server(streamed("seen")).open() as server:
            async with before(server, BuildContext(weights_folder=Path(), base_folder=Path(), fetch=HERE)) as (conversation, heard):
                url = f"http://127.0.0.1:{far.port}/"
                conversation.send(commands.Respond(id="resp_1", history=(engine_history.Message("user", (picture(url),)),)))
                await far.until(lambda: far.asked)
                conversation.send(commands.Cancel("resp_1"))
                assert await heard.end_of() == events.ResponseEnded("resp_1", "cancelled")
                await far.until(lambda: far.left)
                conversation.send(ask("resp_2"))
                assert await heard.end_of("resp_2") == events.ResponseEnded("resp_2")

    run(scenario())
