"""Fetching what a client names: from the public internet, within limits, and never from the inside."""

import asyncio
import contextlib
import ipaddress
import socket

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.runtime.core.url_fetch import FetchLimits, _checked_socket, fetch, is_fetchable

HERE = (ipaddress.ip_network("127.0.0.1/32"),)
"""Only this loopback address counts as outside; 127.0.0.2 stays inside."""

PNG = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 4\r\n\r\n\x89PNG"


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.1",
        "192.0.0.192",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "3fff::1",
        "5f00::1",
    ],
)
def test_an_address_of_the_inside_is_not_asked(text):
    assert not is_fetchable(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_an_address_of_the_outside_is_asked(text):
    assert is_fetchable(ipaddress.ip_address(text))


def test_a_network_that_is_allowed_is_asked():
    assert is_fetchable(ipaddress.ip_address("10.0.0.7"), [ipaddress.ip_network("10.0.0.0/24")])
    assert not is_fetchable(ipaddress.ip_address("10.0.1.7"), [ipaddress.ip_network("10.0.0.0/24")])


class Site:
    """A server that answers each path with these bytes, and remembers what it was asked."""

    def __init__(self, host, **pages):
        self.host, self.pages, self.asked, self.answering = host, pages, [], set()

    @contextlib.asynccontextmanager
    async def open(self):
        async with await asyncio.start_server(self.answer, self.host, 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            try:
                yield self
            finally:
                if self.answering:
                    await asyncio.wait(self.answering)

    async def answer(self, reader, writer):
        self.answering.add(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        page = self.pages[head.split()[1].decode().strip("/")]
        with contextlib.suppress(ConnectionError):
            for piece in [page] if isinstance(page, bytes) else page:
                writer.write(piece)
                await writer.drain()
            if page is SILENCE:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def url(self, path, host=None):
        return f"http://{host or self.host}:{self.port}/{path}"


SILENCE: tuple[bytes, ...] = ()


def redirect(target):
    return f"HTTP/1.1 302 Found\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n".encode()


def fetched(path="picture", pages=None, host=None, resolve=None, url=None, **limits):
    """What is fetched from a site of these pages; the site too."""

    async def run():
        async with Site("127.0.0.1", **(pages or {"picture": PNG})).open() as site:
            extra = {} if resolve is None else {"resolve": resolve}
            return await fetch(url or site.url(path, host), "input[0]", FetchLimits(**({"allowed_networks": HERE} | limits)), **extra), site

    return asyncio.run(run())


def refused(*args, **kwargs):
    """Why it is not fetched."""
    with pytest.raises(ClientError) as refusal:
        fetched(*args, **kwargs)
    assert (refusal.value.code, refusal.value.param, refusal.value.status) == ("invalid_url", "input[0]", 400)
    return refusal.value.message.removeprefix("Failed to download 'input[0]': ")


def names(**known):
    """A resolver of these names, one address more each time it is asked."""
    known = {name: iter(addresses) for name, addresses in known.items()}

    async def resolve(host):
        return next(known[host])

    return resolve


def test_what_is_there_is_fetched():
    (body, content_type), site = fetched(content_types=("image/",))
    assert (body, content_type) == (b"\x89PNG", "image/png")
    assert b"cookie" not in site.asked[0].lower()


def test_a_name_is_resolved_once_and_its_address_asked():
    resolve = names(outside=[["127.0.0.1"], ["127.0.0.2"]])
    (body, _), site = fetched(host="outside", resolve=resolve)
    assert body == b"\x89PNG"
    assert f"Host: outside:{site.port}".encode() in site.asked[0]


@pytest.mark.parametrize("addresses", [["127.0.0.2"], ["127.0.0.1", "10.0.0.1"], ["::1"], ["::ffff:127.0.0.2"]])
def test_a_name_with_any_address_inside_is_refused(addresses):
    assert refused(host="inside", resolve=names(inside=[addresses])) == "its address is not public."


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.2", "127.2", "2130706434", "0x7f000002", "0177.0.0.2", "[::1]", "[::ffff:7f00:2]", "127.0.0.2."]
)
def test_the_inside_is_refused_however_it_is_written(host):
    assert refused(host=host, allowed_networks=()) in ("its address is not public.", "it is not a valid URL.")


def test_no_socket_is_made_for_the_inside_whatever_else_has_failed():
    for place in ("127.0.0.2", "127.2", "::1", "nonsense"):
        with pytest.raises(OSError, match="not public"):
            _checked_socket(FetchLimits(allowed_networks=HERE), (socket.AF_INET, socket.SOCK_STREAM, 0, "", (place, 80)))
    _checked_socket(FetchLimits(allowed_networks=HERE), (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80))).close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "only http and https URLs are fetched."),
        ("ftp://example.com/", "only http and https URLs are fetched."),
        ("gopher://127.0.0.1:6379/_INFO", "only http and https URLs are fetched."),
        ("//example.com/x", "only http and https URLs are fetched."),
        ("http://user:secret@example.com/", "it carries credentials."),
        ("http://example.com:25/", "its port is not one of the web."),
        ("http://169.254.169.254/latest/meta-data", "its address is not public."),
        ("http://[::1/", "it is not a valid URL."),
        ("http://example.com:99999/", "it is not a valid URL."),
    ],
)
def test_a_url_of_the_wrong_kind_is_refused(url, reason):
    assert refused(url=url) == reason


def check_name(host):
    """Raises what `getaddrinfo` raises for what is no name."""
    if "\0" in host:
        raise ValueError("embedded null character")
    host.encode("idna")


async def unknown_name(host):
    check_name(host)
    raise OSError("no such name")


@pytest.mark.parametrize(
    "host", [".", "..", "a..b", ".a", "a..", f"{'a' * 64}.b", ".".join(["a" * 63] * 4), "a%00b", "a*b", "[::1]@", "[v1.x]<@", "a%2ecom%00"]
)
def test_a_host_that_is_no_name_is_refused(host):
    assert refused(url=f"http://{host}/picture", resolve=unknown_name) == "it is not a valid URL."


@pytest.mark.parametrize("host", ["a" * 63, ".".join(["a" * 63] * 3), "bücher.example", "with_underscore.example", "ends.with.a.dot."])
def test_a_host_that_is_a_name_is_looked_up(host):
    assert refused(url=f"http://{host}/picture", resolve=unknown_name) == "the server could not be reached."


HOST_PIECES = (
    *(
        "a",
        "b.",
        "..",
        ".",
        "-",
        "_",
        "a" * 63,
        "a" * 64,
        "xn--",
        "xn--a",
        "ü",
        "ß",
        "é" * 70,
        "ﷺ",
        "\u200d",
        "\u3002",
        "\u2488",
        "\xad",
        "１２７",
    ),
    *("%", "%00", "%2e", "%ff", " ", "\t", "\n", "\0", "[", "]", "::1", "[::1]", "[v1.x]", "fe80::1%lo", ":", ":80", ":x", ":-1", ":99999"),
    *("@", "\\", "/", "?", "#", "0x7f", "127.1", "1", "\u0663", "😀", "İ", "*", "'", "<", "^", "|", "\ud800"),
)


@given(
    start=st.sampled_from(["http://", "https://", "http:", "//", ""]),
    host=st.lists(st.sampled_from(HOST_PIECES), max_size=6).map("".join) | st.text(max_size=80),
    end=st.sampled_from(["", "/", "/picture", "/\ud800"]),
)
def test_no_url_is_anything_but_fetched_or_refused(start, host, end):
    async def run():
        with pytest.raises(ClientError) as refusal:
            await fetch(f"{start}{host}{end}", "input[0]", FetchLimits(), unknown_name)
        return refusal.value

    error = asyncio.run(run())
    assert (error.status, error.code, error.param) == (400, "invalid_url", "input[0]")


@pytest.mark.parametrize("target", ["http://a..b/", f"http://{'a' * 64}/", "//[::1]@/", "http://[", "http://a%00b/", "\\\\", "http://:0"])
def test_a_redirect_to_a_host_that_is_no_name_is_refused(target):
    assert refused("a", {"a": redirect(target)}, resolve=unknown_name).startswith(("it is not", "the server", "only http", "its port"))


def test_redirects_are_followed_and_judged_anew():
    assert fetched("a", {"a": redirect("/b"), "b": redirect("c"), "c": PNG})[0].body == b"\x89PNG"
    assert refused("a", {"a": redirect("http://127.0.0.2:8080/")}) == "its address is not public."
    assert refused("a", {"a": redirect("file:///etc/passwd")}) == "only http and https URLs are fetched."
    assert refused("a", {"a": redirect("/a")}) == "it redirects more than 3 times."
    assert refused("a", {"a": b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n"}) == "it redirects to nowhere."


def test_a_name_that_turned_inside_is_refused_when_a_redirect_leads_there():
    resolve = names(outside=[["127.0.0.1"], ["127.0.0.2"]])
    assert refused("a", {"a": redirect("/b"), "b": PNG}, host="outside", resolve=resolve) == "its address is not public."


def endless():
    yield b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n"
    while True:
        yield b"x" * 65536


def test_what_is_too_large_is_not_read_to_its_end():
    assert refused("a", {"a": endless()}, max_bytes=100_000) == "it is larger than 100000 bytes."
    declared = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 999999999\r\n\r\n"
    assert refused("a", {"a": declared}, max_bytes=100_000) == "it is larger than 100000 bytes."


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "the server answered with status 404."),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 0\r\n\r\n", "it is of type 'text/html'."),
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n",
            "it is compressed, although that was not requested.",
        ),
        (b"garbage\r\n\r\n", "the server could not be reached."),
        (b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 9\r\n\r\nhalf", "the server could not be reached."),
    ],
)
def test_an_answer_of_the_wrong_kind_is_refused(page, reason):
    assert refused("a", {"a": page}, content_types=("image/",)) == reason


def test_who_never_answers_is_not_waited_for():
    assert refused("a", {"a": SILENCE}, timeout_s=0.1) == "it took longer than 0.1 seconds."


def test_nobody_there_is_told_without_saying_where():
    async def nowhere(host):
        raise OSError("no such name in the zone internal.example")

    assert refused(host="nowhere", resolve=nowhere) == "the server could not be reached."
