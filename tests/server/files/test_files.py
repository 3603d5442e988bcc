"""The Files API, with the official client."""

import asyncio
import sqlite3
import time

import openai
import pytest
from openai.types import FileDeleted, FileObject

from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.own_process import serving
from support.server.raw_http import connect, request
from support.server.scripted_server import configured
from support.stores.s3_double import s3

MODELS = {"parrot": {"engine": "scripted"}}
MODEL_LIST = [{"name": "parrot", "engine": "scripted"}]


@pytest.fixture(params=["memory", "folder", "s3"])
def client(request, tmp_path, monkeypatch):
    """The client of a server whose files are in each place in turn."""
    settings = {"logging.level": "error"}
    if request.param != "s3":
        with background_server(configured(tmp_path, MODELS, **settings), is_persistent=request.param == "folder") as url:
            yield client_of(url)
        return
    with s3() as (address, _):
        names = {"ENDPOINT_URL": address, "ALLOW_HTTP": "true", "ACCESS_KEY_ID": "ada", "SECRET_ACCESS_KEY": "lovelace", "REGION": "eu"}
        for name, value in names.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        with background_server(configured(tmp_path, MODELS, **settings, **{"files.url": "s3://files/here"})) as url:
            yield client_of(url)


def client_of(url, key="none"):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def is_strict(model):
    """Whether what came is exactly what the official client expects."""
    type(model).model_validate(model.model_dump(), strict=True)
    return not model.model_extra


def upload(client, content=b"hello", name="a.txt", purpose="user_data", **fields):
    return client.files.create(file=(name, content), purpose=purpose, **fields)


def test_a_file_is_uploaded_listed_read_and_deleted(client):
    before = int(time.time())
    file = upload(client, b"owls\r\n--at night", "nötes.md")
    assert isinstance(file, FileObject) and is_strict(file)
    assert file.id.startswith("file-") and file.created_at >= before
    assert (file.object, file.bytes, file.filename, file.purpose) == ("file", 16, "nötes.md", "user_data")
    assert (file.status, file.expires_at, file.status_details) == ("processed", None, None)
    assert client.files.retrieve(file.id) == file
    assert [*client.files.list()] == [file]
    reply = client.files.with_raw_response.content(file.id)
    assert reply.content == b"owls\r\n--at night"
    assert reply.headers["content-disposition"] == "attachment; filename*=UTF-8''n%C3%B6tes.md"
    assert reply.headers["x-content-type-options"] == "nosniff"
    head = client._client.head(f"{client.base_url}files/{file.id}/content")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "16", b"")
    deletion = client.files.delete(file.id)
    assert deletion == FileDeleted(id=file.id, deleted=True, object="file")
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as refusal:
            call(file.id)
        assert refusal.value.body == {
            "message": f"No such File object: {file.id}",
            "type": "invalid_request_error",
            "param": "id",
            "code": None,
        }


def test_a_large_file_arrives_whole(client):
    content = bytes(range(256)) * (12 << 12)  # 12 MiB: more parts than one in S3
    file = upload(client, content)
    assert file.bytes == len(content)
    assert client.files.content(file.id).read() == content
    client.files.delete(file.id)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with small limits."""
    limits = {"files.upload_mib": 1, "files.tenant_gb": 0.002, "files.tenant_files": 4, "logging.level": "error"}
    with background_server(configured(tmp_path_factory.mktemp("home"), MODELS, **limits)) as url:
        yield url


@pytest.fixture
def limited(served):
    """The client of a server with small limits, where nothing is left of other tests."""
    client = client_of(served)
    for file in client.files.list():
        client.files.delete(file.id)
    return client


def test_files_are_listed_page_by_page(limited):
    files = [upload(limited, purpose=purpose) for purpose in ("batch", "user_data", "batch", "vision")]
    ids = [file.id for file in files]
    assert [file.id for file in limited.files.list()] == ids[::-1]
    assert [file.id for file in limited.files.list(order="asc", limit=1)] == ids  # the client follows the pages
    assert [file.id for file in limited.files.list(purpose="batch", order="asc")] == [ids[0], ids[2]]
    page = limited.files.list(order="asc", limit=2, after=ids[0])
    assert ([file.id for file in page.data], page.has_more) == (ids[1:3], True)
    for param, value in (("after", "file-0"), ("limit", 10_001), ("limit", 0), ("order", "up")):
        with pytest.raises(openai.BadRequestError) as refusal:
            limited.files.list(**{param: value})
        assert refusal.value.param == param


def test_the_asynchronous_client_is_served_alike(served, limited):
    async def use():
        async with openai.AsyncOpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0) as client:
            file = await client.files.create(file=b"hello", purpose="assistants")
            assert [each.id async for each in client.files.list()] == [file.id]
            assert (await client.files.content(file.id)).content == b"hello"

    asyncio.run(use())


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"purpose": "responses"}, "invalid_value", "purpose"),
        ({"purpose": openai.NOT_GIVEN}, "missing_required_parameter", "purpose"),
        ({"file": openai.NOT_GIVEN}, "missing_required_parameter", "file"),
        ({"file": ("a.txt", b"")}, "invalid_value", "file"),
        ({"file": ("a.txt", b"-" * ((1 << 20) + 1))}, "file_too_large", "file"),
        ({"file": ("a.txt", b"-" * (3 << 20))}, "file_too_large", "file"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "invalid_value", "expires_after.anchor"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, "integer_below_min_value", "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at", "seconds": 2_592_001}}, "integer_above_max_value", "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at", "seconds": "soon"}}, "invalid_type", "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at"}}, "missing_required_parameter", "expires_after.seconds"),
    ],
)
def test_what_is_wrong_with_an_upload_is_named_and_nothing_of_it_stays(limited, fields, code, param):
    with pytest.raises(openai.APIStatusError) as refusal:
        limited.files.create(**{"file": ("a.txt", b"hello"), "purpose": "batch", **fields})
    assert (refusal.value.code, refusal.value.param) == (code, param)
    assert refusal.value.status_code == (413 if code == "file_too_large" else 400)
    assert [*limited.files.list()] == []


def test_quotas_are_kept_and_named(limited):
    first = upload(limited, b"-" * 900_000)
    upload(limited, b"-" * 900_000)
    with pytest.raises(openai.BadRequestError, match=r"files\.tenant_gb") as refusal:
        upload(limited, b"-" * 900_000)
    assert (refusal.value.code, refusal.value.param) == ("file_quota_exceeded", "file")
    limited.files.delete(first.id)
    upload(limited, b"-" * 900_000)  # there is room again
    upload(limited), upload(limited)
    with pytest.raises(openai.BadRequestError, match=r"4 files \(`files\.tenant_files`\)"):
        upload(limited)


def test_a_file_expires_when_it_was_said_to(limited):
    file = upload(limited, expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.expires_at == file.created_at + 3600


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\docs\\a.txt", "a.txt"),
        ("..", "file"),
        ("a\u202egpj.exe", "agpj.exe"),
        ("x" * 400 + ".txt", "x" * 251 + ".txt"),
    ],
)
def test_a_filename_is_only_a_name(limited, name, stored):
    assert upload(limited, name=name).filename == stored


def test_tenants_do_not_see_each_other_and_keys_have_their_scopes_and_quotas(tmp_path):
    server = KeyServer(tmp_path, MODELS, **{"files.key_gb": 0.000_001})

    async def keys():
        return (
            await server.key(tenant="ada"),
            await server.key(tenant="ada", scopes=["responses:read"]),
            await server.key(tenant="ada"),
            await server.key(tenant="bob"),
        )

    ada, reader, second, bob = asyncio.run(keys())
    with server.serving() as url:
        file = upload(client_of(url, ada), b"-" * 600)
        assert client_of(url, reader).files.content(file.id).read() == b"-" * 600
        for call in (lambda: upload(client_of(url, reader)), lambda: client_of(url, reader).files.delete(file.id)):
            with pytest.raises(openai.PermissionDeniedError):
                call()
        stranger = client_of(url, bob)
        assert [*stranger.files.list()] == []
        for call in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(file.id)
        with pytest.raises(openai.BadRequestError):
            stranger.files.list(after=file.id)
        with pytest.raises(openai.BadRequestError, match=r"files\.key_gb"):
            upload(client_of(url, ada), b"-" * 600)
        upload(client_of(url, second), b"-" * 600)


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_of_an_upload_whose_server_was_killed_nothing_is_left(tmp_path):
    home = tmp_path / ".local/share/antiphon"
    with serving(tmp_path, MODEL_LIST) as (process, url):
        kept = upload(client_of(url), b"whole")
        expired = upload(client_of(url), b"expired", expires_after={"anchor": "created_at", "seconds": 3600})
        head = request("POST", "/v1/files", content_type="multipart/form-data; boundary=b", content_length="30000000")
        part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        with connect(url) as connection:
            connection.sendall(head + part + bytes(20 << 20))
            while len(files_below(home / "files")) < 3:  # the half file, which nobody sees
                assert process.poll() is None
            assert len(client_of(url).files.list().data) == 2
            process.kill()
            process.wait()
    with sqlite3.connect(home / "antiphon.sqlite3") as database:
        database.execute("UPDATE files SET expires_at = 1 WHERE id = ?", (expired.id,))
    with serving(tmp_path, MODEL_LIST) as (_, url):
        client = client_of(url)
        assert [file.id for file in client.files.list()] == [kept.id]
        assert client.files.content(kept.id).read() == b"whole"
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(expired.id)
        assert {path.parent.name for path in files_below(home / "files")} <= {kept.id, expired.id}
