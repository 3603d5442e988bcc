"""The fetch guard against every address that leads inside, however it is written, and whoever hides it."""

import asyncio
import contextlib
import ipaddress
import itertools
import socket

import pytest

from antiphon.errors import ClientError
from antiphon.runtime.core.url_fetch import FetchLimits, PostFailure, fetch, is_fetchable, page_fetcher, post
from support.runtime.hostile_urls import INSIDE, LOOPBACK_FORMS, OUTSIDE, TRICKS, all_urls, host_form

REDIRECTS = (301, 302, 303, 307, 308)
HERE = (ipaddress.ip_network("127.0.0.1/32"),)


async def libc(host):
    """The addresses that this machine's C library reads in a host, and those of its own names; nothing leaves it."""
    if host.rstrip(".").lower() in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return ["127.0.0.1", "::1"]
    return [str(place[0]) for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)]


def names(**table):
    """A resolver of these names; every answer is given once."""
    answers = {name: iter(values) for name, values in table.items()}

    async def resolve(host):
        answer = next(answers[host])
        if isinstance(answer, Exception):
            raise answer
        return answer

    return resolve


class Listener:
    """Counts who connects, and answers everybody with `reply`."""

    def __init__(self, host="127.0.0.1", reply=b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret"):
        self.host, self.reply, self.heads, self.tasks = host, reply, [], set()

    @contextlib.asynccontextmanager
    async def open(self, port=0):
        async with await asyncio.start_server(self.answer, self.host, port) as server:
            self.port = server.sockets[0].getsockname()[1]
            try:
                yield self
            finally:
                if self.tasks:
                    await asyncio.wait(self.tasks)

    async def answer(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        self.heads.append(b"")
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self.heads[-1] = await reader.readuntil(b"\r\n\r\n")
            writer.write(self.reply)
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def refuse(url, resolve=libc, limits=None):
    """The reason why a URL is not fetched, in the protocol's own shape; the same for a webhook and for a page."""
    limits = limits or FetchLimits()
    with pytest.raises(ClientError) as caught:
        await fetch(url, "input[0]", limits, resolve)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "invalid_url", "input[0]")
    return error.message.removeprefix("Failed to download 'input[0]': ")


def test_there_are_enough_of_them():
    assert len({*INSIDE, *LOOPBACK_FORMS, *TRICKS}) == len(INSIDE) + len(LOOPBACK_FORMS) + len(TRICKS) >= 150


def test_an_address_inside_is_not_public():
    assert [text for text in INSIDE if is_fetchable(ipaddress.ip_address(text))] == []


def test_an_address_next_to_those_is_public():
    assert [text for text in OUTSIDE if not is_fetchable(ipaddress.ip_address(text))] == []


def test_no_hostile_url_reaches_this_machine():
    async def run():
        async with Listener().open() as listener:
            for url in all_urls(listener.port):
                reason = await refuse(url)
                assert "127.0.0.1" not in reason, url
                with pytest.raises(PostFailure):
                    await post(url, b"{}", {}, FetchLimits(), libc)
                with pytest.raises(ClientError):
                    await page_fetcher((), libc)(url, lambda _: None, 1000, 10)
            assert listener.heads == []

    asyncio.run(run())


def test_no_redirect_leads_inside():
    """Each status, to each class of address and each way to write it."""

    async def run():
        async with Listener("127.0.0.2").open() as inside:
            targets = [url.replace("\r", "").replace("\n", "").replace("\0", "") for url in all_urls(inside.port) if "\ud800" not in url]
            pairs = zip(itertools.cycle(REDIRECTS), targets, strict=False)
            classes = [(status, f"http://{host_form(address)}/") for status in REDIRECTS for address in INSIDE[::12]]
            async with Listener().open() as outside:
                for status, target in [*pairs, *classes]:
                    if f"//127.0.0.1:{inside.port}" in target or len(target) > 8000:
                        continue  # the one address that is outside here
                    location = target.encode("utf-8", "replace")
                    outside.reply = b"HTTP/1.1 %d X\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % (status, location)
                    url = f"http://127.0.0.1:{outside.port}/"
                    await refuse(url, libc, FetchLimits(allowed_networks=HERE, max_redirects=1))
            assert inside.heads == []

    asyncio.run(run())


@pytest.mark.parametrize("status", [100, 101, 204, 206, 300, 304, 305, 306, 399, 401, 407])
def test_no_other_status_is_followed(status):
    async def run():
        async with Listener("127.0.0.2").open() as inside, Listener().open() as outside:
            location = f"http://127.0.0.2:{inside.port}/"
            outside.reply = f"HTTP/1.1 {status} X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()
            await refuse(f"http://127.0.0.1:{outside.port}/", limits=FetchLimits(allowed_networks=HERE, timeout_s=5))
            assert inside.heads == []

    asyncio.run(run())


def test_a_network_that_is_allowed_is_not_allowed_behind_a_translator():
    networks = [ipaddress.ip_network("10.0.0.0/8")]
    assert is_fetchable(ipaddress.ip_address("::ffff:10.0.0.1"), networks)
    assert not is_fetchable(ipaddress.ip_address("64:ff9b::10.0.0.1"), networks)


# Names


def test_a_name_of_an_address_inside_is_refused_even_among_public_ones():
    async def run():
        for address in INSIDE:
            for answer in ([address], ["1.1.1.1", address], [address, "2606:4700::1111"], ["8.8.8.8"] * 20 + [address]):
                reason = await refuse("http://name.example/", names(**{"name.example": [answer]}))
                assert reason == "its address is not public.", answer

    asyncio.run(run())


@pytest.mark.parametrize(
    "answer", [["nonsense"], [""], ["127.1"], ["0x7f000001"], ["1.1.1.1", "x"], ["1.1.1.1/8"], ["[::1]"], ["1.1.1.1\0"]]
)
def test_a_resolver_that_answers_no_address_is_refused(answer):
    assert asyncio.run(refuse("http://name.example/", names(**{"name.example": [answer]}))) == "its address is not public."


def test_a_resolver_that_answers_nothing_or_too_much_is_refused():
    assert asyncio.run(refuse("http://name.example/", names(**{"name.example": [[]]}))) == "its name has no address."
    many = [f"1.1.{number // 250}.{number % 250}" for number in range(10_000)]
    assert asyncio.run(refuse("http://name.example/", names(**{"name.example": [many]}))) == "its name has more than 100 addresses."


@pytest.mark.parametrize("error", [OSError("x"), socket.gaierror(-2, "zone internal.example"), TimeoutError()])
def test_a_resolver_that_fails_is_told_without_its_words(error):
    assert "internal" not in asyncio.run(refuse("http://name.example/", names(**{"name.example": [error]})))


def test_a_resolver_that_hangs_is_not_waited_for():
    async def hang(_host):
        await asyncio.Event().wait()

    assert asyncio.run(refuse("http://name.example/", hang, FetchLimits(timeout_s=0.05))) == "it took longer than 0.05 seconds."


def test_a_name_that_changes_between_judgement_and_connection_gains_nothing():
    """The name is asked once for each connection, and the connection goes to the answer that was judged."""

    async def run():
        async with Listener("127.0.0.2").open() as inside, Listener().open(inside.port) as outside:
            resolve = names(**{"name.example": [["127.0.0.1"], ["127.0.0.2"], ["127.0.0.2"]]})
            limits = FetchLimits(allowed_networks=HERE)
            assert (await fetch(f"http://name.example:{outside.port}/", "u", limits, resolve)).body == b"secret"
            outside.reply = b"HTTP/1.1 302 X\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n"
            assert await refuse(f"http://name.example:{outside.port}/", resolve, limits) == "its address is not public."
            resolve = names(**{"name.example": [["127.0.0.1"], ["127.0.0.2"]]})
            assert await refuse(f"http://name.example:{outside.port}/", resolve, limits) == "its address is not public."
            assert inside.heads == []

    asyncio.run(run())


# Pages: whoever asks judges too


def test_whoever_asks_for_a_page_judges_each_redirect():
    async def run():
        urls = []

        def judge(url):
            urls.append(url)
            return "its domain is blocked in this request" if "/blocked" in url else None

        async with Listener().open() as site:
            home = f"http://127.0.0.1:{site.port}"
            fetch_page = page_fetcher(["127.0.0.1/32"])
            site.reply = b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=ISO-8859-1\r\ncontent-length: 2\r\n\r\nhi"
            page = await fetch_page(f"{home}/a", judge, 1000, 10)
            assert page == (f"{home}/a", b"hi", "text/html", "ISO-8859-1")
            site.reply = b"HTTP/1.1 307 X\r\nlocation: /blocked\r\ncontent-length: 0\r\n\r\n"
            with pytest.raises(ClientError, match="redirects to a page that can't be opened: its domain is blocked"):
                await fetch_page(f"{home}/a", judge, 1000, 10)
            assert urls == [f"{home}/blocked"] and len(site.heads) == 2
            site.reply = b"HTTP/1.1 307 X\r\nlocation: /on\r\ncontent-length: 0\r\n\r\n"
            with pytest.raises(ClientError, match="redirects more than 5 times"):
                await fetch_page(f"{home}/a", judge, 1000, 10)

    asyncio.run(run())
