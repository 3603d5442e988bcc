"""Secrets that open Realtime sessions: made over HTTP, used by a browser."""

import json
import time

import pytest
from openai.types.beta.realtime import SessionCreateResponse
from openai.types.realtime import ClientSecretCreateResponse

from antiphon.records import ClientSecretRecord
from antiphon.runtime.access.keys import hash_secret
from antiphon.server.processes.run import background_server
from antiphon.server.realtime.client_secrets import SESSION_LIMIT_BYTES
from support.server.key_server import KeyServer
from support.server.realtime_peer import connected, posted, refusal
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}, "second": {"engine": "scripted", **SCRIPT}}
SECRETS, BETA, BETA_TRANSCRIPTION = "/v1/realtime/client_secrets", "/v1/realtime/sessions", "/v1/realtime/transcription_sessions"


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def secret_of(url, key=None, **body):
    status, answer = await posted(url, SECRETS, body, key)
    assert status == 200, answer
    return answer["value"]


async def session_of(url, **connection):
    async with connected(url, **connection) as peer:
        return (await peer.hear())["session"]


def as_browser(secret):
    return {"protocols": ("realtime", f"openai-insecure-api-key.{secret}")}


async def test_a_secret_opens_sessions_that_begin_as_was_said_when_it_was_made(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key, _ = await server.create_key()
    wanted = {"type": "realtime", "model": "second", "instructions": "Be brief.", "output_modalities": ["text"]}
    with server.serving() as url:
        before = time.time()
        status, made = await posted(url, SECRETS, {"session": wanted}, key)
        assert status == 200 and made["value"].startswith("ek_") and 595 <= made["expires_at"] - before <= 601
        assert made["session"].items() >= wanted.items()
        ClientSecretCreateResponse.model_validate(made, strict=True)
        for connection in (as_browser(made["value"]), {"key": made["value"]}):
            assert (await session_of(url, **connection)).items() >= wanted.items()
        # What it carries goes before the address.
        assert (await session_of(url, key=made["value"], model="parrot"))["model"] == "second"


async def test_fields_that_nothing_reads_are_not_shown_as_if_they_were_in_effect(open_url):
    audio = {"input": {"colour": 1, "turn_detection": {"type": "server_vad", "colour": 1}}}
    for path, body in ((SECRETS, {"session": {"type": "realtime", "colour": 1, "audio": audio}, "colour": 1}), (BETA, {"colour": 1})):
        status, made = await posted(open_url, path, body)
        assert status == 200
        assert "colour" not in json.dumps(made)


async def test_a_secret_opens_sessions_and_nothing_else(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key, _ = await server.create_key()
    with server.serving() as url:
        secret = await secret_of(url, key)
        for path, body in (("/v1/responses", {"input": "Hi"}), (SECRETS, {})):
            status, answer = await posted(url, path, body, secret)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert "is a client secret, which opens a Realtime session and nothing else" in answer["error"]["message"]
            assert secret not in answer["error"]["message"]
        assert (await session_of(url, key=secret))["model"] == "parrot"


async def test_a_secret_has_the_limits_of_the_key_that_made_it(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key, _ = await server.create_key(streams=1)
    with server.serving() as url:
        secret = await secret_of(url, key)
        async with connected(url, key=secret) as peer:
            await peer.hear()
            assert await refusal(url, key=secret) == 429
            assert await refusal(url, key=key) == 429


async def test_a_secret_falls_with_its_key(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key, record = await server.create_key()
    with server.serving() as url:
        secret = await secret_of(url, key)
    await server.with_store(lambda store: store.keys.revoke(record.id, 2))
    with server.serving() as url:
        assert await refusal(url, key=secret) == 401


async def test_a_secret_made_by_one_process_is_known_to_another_until_it_expires(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    _, record = await server.create_key()
    now = int(time.time())
    told = {"key_id": record.id, "session": b'{"type":"realtime"}'}
    live = ClientSecretRecord(hash=hash_secret("ek_live"), created_at=now, expires_at=now + 600, **told)
    gone = ClientSecretRecord(hash=hash_secret("ek_gone"), created_at=now - 600, expires_at=now - 1, **told)
    for each in (gone, live):
        await server.with_store(lambda store, each=each: store.client_secrets.add(each))
    with server.serving() as url:
        assert (await session_of(url, key="ek_live"))["model"] == "parrot"
        assert await refusal(url, key="ek_gone") == 401
        assert await refusal(url, key="ek_never") == 401


async def test_a_secret_opens_no_session_of_the_other_protocol_where_it_could_choose_its_model(open_url):
    secret = await secret_of(open_url, session={"type": "realtime", "model": "second"})
    for mode in ("chat", "video", "none"):
        assert await refusal(open_url, key=secret, mode=mode, model="parrot") == 403
    assert (await session_of(open_url, key=secret, model="parrot"))["model"] == "second"


async def test_a_key_without_the_scope_makes_no_secrets(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key, _ = await server.create_key(scopes=("responses:write",))
    with server.serving() as url:
        for path in (SECRETS, BETA, BETA_TRANSCRIPTION):
            assert (await posted(url, path, {}, key))[0] == 403
            assert (await posted(url, path, {}))[0] == 401


@pytest.fixture(scope="module")
def open_url(tmp_path_factory):
    """A server that needs no key."""
    models = {**MODELS, "deaf": {"engine": "scripted", "abilities": {"transcribes": False}}}
    with background_server(configured(tmp_path_factory.mktemp("open"), models, **{"logging.level": "error"})) as url:
        yield url


async def test_where_no_key_is_needed_secrets_work_all_the_same(open_url):
    secret = await secret_of(open_url, session={"type": "realtime", "instructions": "Be brief."})
    assert (await session_of(open_url, **as_browser(secret)))["instructions"] == "Be brief."
    assert await refusal(open_url, key="ek_never") == 401


async def test_a_secret_lasts_as_long_as_is_asked(open_url):
    for asked, seconds in [({"anchor": "created_at", "seconds": 10}, 10), ({"seconds": 7200}, 7200), ({}, 600), (None, 600)]:
        before = time.time()
        _, made = await posted(open_url, SECRETS, {"expires_after": asked})
        assert -1 <= made["expires_at"] - before - seconds <= 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "tomorrow"}}, "expires_after.anchor"),
        ({"session": {}}, "session.type"),
        ({"session": {"type": "sing"}}, "session.type"),
        ({"session": {"type": "realtime", "output_modalities": ["text", "audio"]}}, "session.output_modalities"),
        ({"session": {"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}}}, None),
    ],
)
async def test_a_mistake_in_a_session_is_told_to_who_makes_the_secret(open_url, body, param):
    status, answer = await posted(open_url, SECRETS, body)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"
    assert param is None or answer["error"]["param"] == param


async def test_a_model_that_there_is_not_is_told_to_who_makes_the_secret(open_url):
    status, answer = await posted(open_url, SECRETS, {"session": {"type": "realtime", "model": "none"}})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_a_secret_carries_no_more_than_fits(open_url):
    status, answer = await posted(open_url, SECRETS, {"session": {"type": "realtime", "instructions": "x" * SESSION_LIMIT_BYTES}})
    assert (status, answer["error"]["code"]) == (413, "request_too_large")


async def test_a_secret_can_be_for_sessions_that_transcribe(open_url):
    secret = await secret_of(open_url, session={"type": "transcription", "audio": {"input": {"turn_detection": None}}})
    session = await session_of(open_url, key=secret)
    assert session["type"] == "transcription" and session["audio"]["input"]["turn_detection"] is None


async def test_the_betas_sessions_are_as_it_has_them(open_url):
    before = time.time()
    status, made = await posted(open_url, BETA, {"model": "second", "modalities": ["text"], "voice": "alloy"})
    assert status == 200 and made["object"] == "realtime.session" and made["modalities"] == ["text"] and made["model"] == "second"
    assert made["client_secret"]["value"].startswith("ek_") and 58 <= made["client_secret"]["expires_at"] - before <= 61
    SessionCreateResponse.model_validate(made)
    secret = made["client_secret"]["value"]
    session = await session_of(open_url, protocols=("realtime", f"openai-insecure-api-key.{secret}", "openai-beta.realtime-v1"))
    assert session["modalities"] == ["text"] and session["model"] == "second"
    assert (await session_of(open_url, key=secret))["output_modalities"] == ["text"]


async def test_the_betas_secrets_last_as_long_as_is_asked(open_url):
    _, made = await posted(open_url, BETA, {"client_secret": {"expires_after": {"anchor": "created_at", "seconds": 300}}})
    assert 298 <= made["client_secret"]["expires_at"] - time.time() <= 301
    status, answer = await posted(open_url, BETA, {"client_secret": {"expires_after": {"seconds": 1}}})
    assert (status, answer["error"]["param"]) == (400, "client_secret.expires_after.seconds")


async def test_the_betas_sessions_that_transcribe_are_as_it_has_them(open_url):
    status, made = await posted(open_url, BETA_TRANSCRIPTION, {"input_audio_format": "g711_ulaw", "turn_detection": None})
    assert status == 200 and made["object"] == "realtime.transcription_session"
    assert made["input_audio_format"] == "g711_ulaw" and made["turn_detection"] is None
    session = await session_of(open_url, key=made["client_secret"]["value"])
    assert session["type"] == "transcription" and session["audio"]["input"]["format"] == {"type": "audio/pcmu"}
