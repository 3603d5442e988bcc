"""The page's files: who gets them, with what headers, and that nothing else of the disk is reached."""

import gzip
from pathlib import Path

import httpx2
import pytest
from hatchling.builders.wheel import WheelBuilder

from antiphon.runtime.service import Service
from antiphon.server.app import Starlette
from antiphon.server.console.assets import page_files
from antiphon.server.console.page import CONTENT_SECURITY_POLICY, page_routes, routes
from antiphon.server.http.errors import HTTPException, on_http_exception
from support.server.scripted_server import configured

pytestmark = pytest.mark.anyio

CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8"
INDEX = b'<!doctype html><title>antiphon</title><script type="module" src="./console/assets/app-0a1B2c3D.js"></script>'
SCRIPT = b"console.log('antiphon')\n" * 1000


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "console"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_bytes(INDEX)
    (folder / "assets" / "app-0a1B2c3D.js").write_bytes(SCRIPT)
    (folder / "assets" / "face-0a1B2c3D.woff2").write_bytes(b"wOF2" * 1000)
    (folder / "favicon.svg").write_bytes(b"<svg/>")
    (tmp_path / "secret.txt").write_text("nobody's business")
    return folder


def service_of(tmp_path, **settings):
    return Service(configured(tmp_path, {}, **{"store.url": "memory", **settings}), print)


def client_of(all_routes):
    app = Starlette(routes=all_routes, exception_handlers={HTTPException: on_http_exception})
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost:8642")


@pytest.fixture
async def client(tmp_path, folder):
    async with client_of(page_routes(service_of(tmp_path), page_files(folder))) as client:
        yield client


async def test_a_browser_gets_the_page_and_its_policy(client):
    answer = await client.get("/", headers={"accept": CHROMIUM, "accept-encoding": "identity"})
    assert (answer.status_code, answer.content) == (200, INDEX)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY and "require-trusted-types-for 'script'" in CONTENT_SECURITY_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["permissions-policy"] == "microphone=(self), camera=(self)"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-cache"
    assert {name.strip() for name in answer.headers["vary"].split(",")} >= {"Origin", "Accept"}


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/htmlish", ""])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_everybody_else_is_told_that_nothing_is_there(client, method, accept):
    answer = await client.request(method, "/", headers={"accept": accept})
    assert (answer.status_code, answer.headers["vary"]) == (404, "Origin, Accept")
    assert method == "HEAD" or answer.json()["error"]["code"] == "unknown_url"


async def test_a_file_with_a_hash_in_its_name_is_kept_for_ever_and_others_are_asked_for_again(client):
    told = {name: await client.get(f"/console/assets/{name}") for name in ("app-0a1B2c3D.js", "face-0a1B2c3D.woff2", "favicon.svg")}
    assert [answer.status_code for answer in told.values()] == [200, 200, 200]
    assert told["app-0a1B2c3D.js"].headers["cache-control"] == "public, max-age=31536000, immutable"
    assert told["favicon.svg"].headers["cache-control"] == "no-cache"
    types = [answer.headers["content-type"] for answer in told.values()]
    assert types == ["text/javascript; charset=utf-8", "font/woff2", "image/svg+xml"]
    assert all(answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY for answer in told.values())


@pytest.mark.parametrize(
    ("accept", "is_small"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("*", True), ("gzip;q=0", False), ("gzip;q=0.0, *", False), ("br", False), ("", False)],
)
async def test_a_file_is_compressed_for_who_takes_it_so(client, accept, is_small):
    async with client.stream("GET", "/console/assets/app-0a1B2c3D.js", headers={"accept-encoding": accept}) as answer:
        raw = b"".join([piece async for piece in answer.aiter_raw()])
    assert (answer.headers.get("content-encoding"), len(raw) < len(SCRIPT) // 10) == ("gzip" if is_small else None, is_small)
    assert (gzip.decompress(raw) if is_small else raw) == SCRIPT
    assert answer.headers["vary"] == "Accept-Encoding"


async def test_what_does_not_shrink_is_sent_plain(client):
    for name in ("face-0a1B2c3D.woff2", "favicon.svg"):
        assert "content-encoding" not in (await client.get(f"/console/assets/{name}", headers={"accept-encoding": "gzip"})).headers


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize("path", ["/", "/console/assets/app-0a1B2c3D.js"])
async def test_what_a_browser_has_is_not_sent_again(client, path, coding):
    headers = {"accept": "text/html", "accept-encoding": coding}
    tag = (await client.get(path, headers=headers)).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = await client.get(path, headers=headers | {"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "cache-control" in again.headers and "vary" in again.headers
    assert (await client.get(path, headers=headers | {"if-none-match": '"other"'})).status_code == 200


async def test_the_encodings_of_a_file_have_tags_of_their_own(client):
    tags = {
        (await client.get("/console/assets/app-0a1B2c3D.js", headers={"accept-encoding": each})).headers["etag"] for each in ("gzip", "br")
    }
    assert len(tags) == 2


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "..%5csecret.txt",
        "....//secret.txt",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "assets",
        "assets%2fapp-0a1B2c3D.js",
        "index.html",
        ".",
        "",
        "app-0a1B2c3D.js%00",
    ],
)
async def test_no_name_leads_out_of_the_page(client, name):
    answer = await client.get(f"/console/assets/{name}")
    assert answer.status_code == 404 and "nobody" not in answer.text


async def test_a_copy_without_the_files_says_so(tmp_path):
    async with client_of(page_routes(service_of(tmp_path), page_files(tmp_path / "none"))) as client:
        answer = await client.get("/", headers={"accept": CHROMIUM})
        assert answer.status_code == 200 and "The files of the page are missing" in answer.text
        assert (await client.get("/", headers={"accept": "*/*"})).status_code == 404


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_without_the_page_a_browser_is_led_to_the_reference(tmp_path, method):
    async with client_of(routes(service_of(tmp_path, **{"server.console": False}))) as client:
        for accept in (CHROMIUM, "application/xml, Text/HTML;q=0.9"):
            answer = await client.request(method, "/", headers={"accept": accept})
            assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
        assert (await client.get("/", headers={"accept": "*/*"})).status_code == 404
        assert (await client.get("/console/assets/app-0a1B2c3D.js")).status_code == 404


def test_the_wheel_has_every_file_of_the_package():
    root = Path(__file__).parents[3]
    package = root / "src" / "antiphon"
    told = {each.distribution_path for each in WheelBuilder(str(root)).recurse_included_files()}
    pages = {f"antiphon/{path.relative_to(package)}" for path in (package / "console").rglob("*") if path.is_file()}
    assert told >= pages | {"antiphon/server/admin/docs_page.html"}
