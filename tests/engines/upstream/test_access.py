"""Whom the engine asks, and as whom: addresses, keys, certificates, and options that can't be meant."""

import asyncio
from pathlib import Path

import pytest

from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ServerError
from support.engines.upstreams import (
    HALF,
    Server,
    ask,
    before,
    chunk,
    engine_for,
    last_of,
    playing,
    run,
    served,
    streamed,
    whole,
)

# Who is asked, and as whom


def test_the_key_is_in_no_message():
    place = BuildContext(weights_folder=Path(), base_folder=Path(), secrets={"KEY": "sk-s3cret-0123"})
    options = {"place": place, "api_key_env": "KEY", "headers": {"x-team": "t3am-s3cret"}}
    for told in ({"error": {"message": "wrong: sk-s3cret-0123 of t3am-s3cret"}}, {"error": "sk-s3cret-0123"}):
        for status in ("400 No", "401 No", "403 No", "404 No", "429 No", "500 Oh", "503 Oh"):
            word, server = last_of(whole(status, told), **options)
            assert "s3cret" not in repr(word)
    word, _ = last_of(whole("400 No", {"error": "key sk-s3cret-0123"}), **options)
    assert word.message == "key …"
    word, _ = last_of(HALF + chunk(b'data: {"error":{"message":"key sk-s3cret-0123"}}\n\n'), **options)
    assert "s3cret" not in repr(word)
    assert "authorization: Bearer sk-s3cret-0123\r\nx-team: t3am-s3cret\r\n" in server.asked[0][0]


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"x-a": "b\r\nx-c: d"}},
        {"headers": {"x-a\r\nx-c": "d"}},
        {"headers": {"x a": "d"}},
        {"headers": {"Authorization": "d"}},
        {"headers": {"content-length": "3"}},
        {"base_url": "http://h/v1\r\nx: y"},
        {"base_url": "http://user:pass@h/v1"},
        {"base_url": "http://h/v1#x"},
        {"base_url": "ftp://h/v1"},
        {"base_url": "http://h:0/v1"},
        {"base_url": "http://h:99999/v1"},
        {"base_url": "http://[::1/v1"},
        {"api_key": "sk-1"},
        {"concurrency": 0},
        {"retries": 9},
        {"timeout_idle_s": 0},
        {"timeout_idle_s": float("inf")},
        {"timeout_idle_s": float("nan")},
        {"abilities": {"flying": True}},
        {"abilities": {"images": "perhaps"}},
        {"ca_file": "/nowhere/ca.pem", "base_url": "https://h/v1"},
        {"fetch_urls": "there"},
    ],
    ids=str,
)
def test_an_option_that_can_not_be_meant_is_refused(options):
    with pytest.raises(ServerError, match="'m'"):
        engine_for(**({"base_url": "http://h/v1"} | options))


def test_a_key_that_is_no_key_is_refused_without_being_shown():
    with pytest.raises(ServerError) as refusal:
        engine_for("http://h/v1", BuildContext(weights_folder=Path(), base_folder=Path(), secrets={"KEY": "a\r\nb"}), api_key_env="KEY")
    assert "a\r" not in str(refusal.value)


def test_a_base_address_keeps_its_path_and_query():
    async def scenario():
        async with asyncio.timeout(20), Server(streamed("hello")).open() as server:
            engine = engine_for(f"http://localhost:{server.port}/openai/v1/?api-version=1")
            async with engine.open(ConversationSettings(model="m1"), lambda _words: None) as conversation:
                conversation.send(ask())
                await server.until(lambda: server.asked)
            await engine.stop()
        head = server.asked[0][0]
        assert head.startswith("POST /openai/v1/chat/completions?api-version=1 HTTP/1.1\r\n")
        assert f"host: localhost:{server.port}\r\n" in head

    run(scenario())


# TLS


def test_a_private_authority_is_trusted_when_it_is_named(certificates):
    place = BuildContext(weights_folder=Path(), base_folder=certificates)
    heard, _ = playing(streamed("hello"), place=place, tls=served(certificates), scheme="https", ca_file="ca.pem")
    assert heard.text() == "hello"


def test_an_authority_that_nobody_named_is_not_trusted(certificates):
    word, server = last_of(streamed("hello"), tls=served(certificates), scheme="https")
    assert (word.status, word.code) == (502, "upstream_unreachable")
    assert "TLS can't be trusted" in word.message
    assert server.asked == []


def test_a_certificate_of_another_name_is_not_trusted(certificates):
    async def scenario():
        server = Server(streamed("hello"), tls=served(certificates))
        place = BuildContext(weights_folder=Path(), base_folder=certificates)
        async with (
            asyncio.timeout(20),
            server.open(),
            before(server, place, scheme="https", host="localhost", ca_file="ca.pem") as (tell, heard),
        ):
            tell.send(ask())
            assert "TLS can't be trusted" in (await heard.end_of()).message

    run(scenario())
