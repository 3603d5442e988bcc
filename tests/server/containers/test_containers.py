"""The Containers API, with the official client and raw."""

import asyncio
import contextlib
import json
import sqlite3
import time

import openai
import pytest

from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.raw_http import error_of, exchange, request, statuses
from support.server.scripted_server import configured

MODELS = {"parrot": {"engine": "scripted"}}


def client_of(url, key="none"):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def is_strict(model):
    """Whether what came is exactly what the official client expects."""
    type(model).model_validate(model.model_dump(), strict=True)
    return not model.model_extra


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def url(home):
    with background_server(configured(home, MODELS, **{"logging.level": "error"}), is_persistent=True) as url:
        yield url


@pytest.fixture
def client(url):
    """The client of a server where nothing is left of other tests."""
    with client_of(url) as client:
        for container in client.containers.list():
            client.containers.delete(container.id)
        yield client


@pytest.fixture
def container(client):
    return client.containers.create(name="box")


def add(client, container, content=b"hello", name="a.txt"):
    return client.containers.files.create(container.id, file=(name, content))


def refusal_of(call, *arguments, **fields):
    with pytest.raises(openai.APIStatusError) as caught:
        call(*arguments, **fields)
    return caught.value.status_code, caught.value.code, caught.value.param


def test_a_container_is_created_listed_retrieved_and_deleted(client):
    before = int(time.time())
    container = client.containers.create(
        name="böx",
        expires_after={"anchor": "last_active_at", "minutes": 5},
        memory_limit="1g",
        network_policy={"type": "disabled"},
        skills=[],
    )
    assert is_strict(container) and container.id.startswith("cntr_")
    assert before <= container.created_at <= container.last_active_at
    assert (container.object, container.name, container.status, container.memory_limit) == ("container", "böx", "running", "1g")
    assert (container.expires_after.anchor, container.expires_after.minutes) == ("last_active_at", 5)
    assert container.network_policy.type == "disabled"
    again = client.containers.retrieve(container.id)
    assert is_strict(again) and again.last_active_at >= container.last_active_at
    assert [each.id for each in client.containers.list()] == [container.id]
    assert client.containers.delete(container.id) is None
    for call in (client.containers.retrieve, client.containers.delete, client.containers.files.list, client.containers.files.create):
        assert refusal_of(call, container.id)[0] == 404


def test_containers_are_listed_page_by_page_and_by_name(client):
    ids = [client.containers.create(name=name).id for name in ("a", "b", "a")]
    assert {each.id for each in client.containers.list()} == set(ids)
    listed = [each.id for each in client.containers.list(order="asc", limit=1)]  # the client follows the pages
    assert listed == [each.id for each in client.containers.list(limit=2)][::-1]
    assert {each.id for each in client.containers.list(name="a")} == {ids[0], ids[2]}
    assert all(is_strict(each) for each in client.containers.list())
    for param, value in (("after", "cntr_0"), ("limit", 101), ("limit", 0), ("order", "up")):
        assert refusal_of(client.containers.list, **{param: value})[::2] == (400, param)


def test_a_file_is_added_listed_read_and_deleted(client, container):
    file = add(client, container, b"owls\r\n--at night", "nötes.md")
    assert is_strict(file) and file.id.startswith("cfile_")
    assert (file.object, file.container_id, file.bytes, file.path, file.source) == (
        "container.file",
        container.id,
        16,
        "/mnt/data/nötes.md",
        "user",
    )
    files = client.containers.files
    assert files.retrieve(file.id, container_id=container.id).model_dump() == file.model_dump()
    assert [each.id for each in files.list(container.id)] == [file.id]
    reply = files.with_raw_response
    assert files.content.retrieve(file.id, container_id=container.id).read() == b"owls\r\n--at night"
    raw = files.content.with_raw_response.retrieve(file.id, container_id=container.id)
    assert raw.headers["content-disposition"] == "attachment; filename*=UTF-8''n%C3%B6tes.md"
    assert raw.headers["x-content-type-options"] == "nosniff"
    assert reply.delete(file.id, container_id=container.id).status_code == 200
    for call in (files.retrieve, files.delete, files.content.retrieve):
        assert refusal_of(call, file.id, container_id=container.id)[0] == 404
    assert [*files.list(container.id)] == []


def test_files_are_listed_page_by_page_and_replaced_by_name(client, container):
    ids = {add(client, container, b"1", f"{name}.txt").id for name in "abc"}
    files = client.containers.files
    assert {each.id for each in files.list(container.id, limit=1)} == ids
    newest = [each.id for each in files.list(container.id)]
    assert [each.id for each in files.list(container.id, order="asc")] == newest[::-1]
    assert [each.id for each in files.list(container.id, after=newest[0])] == newest[1:]
    assert refusal_of(files.list, container.id, after="cfile_0")[::2] == (400, "after")
    add(client, container, b"22", "a.txt")
    assert sorted(each.bytes for each in files.list(container.id)) == [1, 1, 2]


def test_a_large_file_arrives_whole_and_an_empty_one_too(client, container):
    content = bytes(range(256)) * (12 << 12)
    for each in (content, b""):
        file = add(client, container, each, "big.bin")
        assert file.bytes == len(each)
        assert client.containers.files.content.retrieve(file.id, container_id=container.id).read() == each


def test_uploaded_files_are_copied(client, container):
    upload = client.files.create(file=("data.csv", b"a,b\n1,2\n"), purpose="user_data")
    file = client.containers.files.create(container.id, file_id=upload.id)
    assert (file.path, file.bytes, file.source) == ("/mnt/data/data.csv", 8, "user")
    other = client.containers.create(name="with files", file_ids=[upload.id])
    (copy,) = client.containers.files.list(other.id)
    client.files.delete(upload.id)  # the copies stay
    assert client.containers.files.content.retrieve(copy.id, container_id=other.id).read() == b"a,b\n1,2\n"
    assert refusal_of(client.containers.files.create, container.id, file_id=upload.id) == (404, None, "file_id")
    assert refusal_of(client.containers.create, name="x", file_ids=[upload.id]) == (404, None, "file_ids[0]")
    assert {each.name for each in client.containers.list()} == {"box", "with files"}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"name": ""}, "empty_string", "name"),
        ({"name": "x" * 257}, "string_above_max_length", "name"),
        ({"name": 3}, "invalid_type", "name"),
        ({"name": openai.NOT_GIVEN}, "missing_required_parameter", "name"),
        ({"expires_after": {"anchor": "created_at", "minutes": 5}}, "invalid_value", "expires_after.anchor"),
        ({"expires_after": {"anchor": "last_active_at"}}, "missing_required_parameter", "expires_after.minutes"),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 0}}, "integer_below_min_value", "expires_after.minutes"),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 21}}, "invalid_value", "expires_after.minutes"),
        ({"memory_limit": "2g"}, "invalid_value", "memory_limit"),
        ({"memory_limit": "64g"}, "unsupported_value", "memory_limit"),
        ({"network_policy": {"type": "allowlist", "allowed_domains": ["a.example"]}}, "unsupported_value", "network_policy.type"),
        ({"network_policy": {"type": "open"}}, "invalid_value", "network_policy.type"),
        ({"skills": [{"type": "skill_reference", "skill_id": "s"}]}, "unsupported_parameter", "skills"),
        ({"file_ids": ["file-0"] * 51}, "array_above_max_length", "file_ids"),
    ],
)
def test_what_is_wrong_with_a_container_is_named(client, fields, code, param):
    assert refusal_of(client.containers.create, **{"name": "x", **fields}) == (400, code, param)
    assert [*client.containers.list()] == []


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\docs\\a.txt", "a.txt"),
        ("..", "file"),
        ("a\u202egpj.exe", "agpj.exe"),
        ("/mnt/data/x", "x"),
    ],
)
def test_a_filename_is_only_a_name(client, container, name, path):
    assert add(client, container, name=name).path == f"/mnt/data/{path}"


def post_form(url, container, form, **headers):
    path = f"/v1/containers/{container.id}/files"
    content_type = "multipart/form-data; boundary=b"
    return exchange(url, request("POST", path, form.encode(), content_type=content_type, connection="close", **headers))


def part(name, content, filename=None):
    file = "" if filename is None else f'; filename="{filename}"'
    return f'--b\r\ncontent-disposition: form-data; name="{name}"{file}\r\n\r\n{content}\r\n'


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (part("x", "y"), "missing_required_parameter", "file"),
        (part("data", "y", "a"), None, "file"),
        (part("file", "y", "a") + part("file", "z", "b"), None, "file"),
        (part("file", "y", "a") + part("file_id", "file-0"), "mutually_exclusive_parameters", "file_id"),
        (part("file_id", "file-0") + part("file", "y", "a"), "mutually_exclusive_parameters", "file_id"),
        (part("file", "y", "a") + "--c", "invalid_multipart_form", None),
    ],
)
def test_what_is_wrong_with_a_form_is_named_and_nothing_of_it_stays(url, client, container, body, code, param):
    add(client, container, b"first", "a")
    end = "" if body.endswith("--c") else "--b--\r\n"
    answer = post_form(url, container, body + end)
    assert statuses(answer) == [400]
    assert (error_of(answer)["code"], error_of(answer)["param"]) == (code, param)
    (file,) = client.containers.files.list(container.id)
    assert client.containers.files.content.retrieve(file.id, container_id=container.id).read() == b"first"


def test_a_form_may_name_an_uploaded_file(url, client, container):
    upload = client.files.create(file=("data.csv", b"a,b"), purpose="user_data")
    answer = post_form(url, container, part("file_id", upload.id) + "--b--\r\n")
    file = json.loads(answer.rpartition(b"\r\n\r\n")[2])
    assert (file["path"], file["bytes"]) == ("/mnt/data/data.csv", 3)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "file_id"),
        ({"file_id": 3}, "invalid_type", "file_id"),
        ({"file_id": "x/../y"}, "invalid_value", "file_id"),
        ({"file_id": "file-/../y"}, None, "file_id"),
    ],
)
def test_what_is_wrong_with_a_file_id_is_named(client, container, body, code, param):
    with pytest.raises(openai.APIStatusError) as caught:
        client.post(f"/containers/{container.id}/files", body=body, cast_to=object)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.status_code == (404 if code is None else 400)


def test_what_is_larger_than_a_container_is_refused_before_it_is_read(url, container):
    answer = post_form(url, container, "", content_length=str(1 << 40))
    assert (statuses(answer), error_of(answer)["code"]) == ([413], "file_too_large")


def test_the_asynchronous_client_is_served_alike(url, client):
    async def use():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as peer:
            box = await peer.containers.create(name="async")
            file = await peer.containers.files.create(box.id, file=("a", b"hello"))
            assert [each.id async for each in peer.containers.list()] == [box.id]
            assert (await peer.containers.files.content.retrieve(file.id, container_id=box.id)).content == b"hello"
            await peer.containers.files.delete(file.id, container_id=box.id)
            await peer.containers.delete(box.id)

    asyncio.run(use())


def test_a_container_that_has_expired_is_still_known_but_of_no_use(home, client, container):
    file = add(client, container)
    (database,) = home.rglob("containers.sqlite")
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE containers SET last_active_at = 1 WHERE id = ?", (container.id,))
    assert client.containers.retrieve(container.id).status == "expired"
    assert [each.status for each in client.containers.list()] == ["expired"]
    files = client.containers.files
    for call in (files.retrieve, files.delete, files.content.retrieve):
        assert refusal_of(call, file.id, container_id=container.id)[:2] == (400, "container_expired")
    for call in (files.list, files.create):
        assert refusal_of(call, container.id)[:2] == (400, "container_expired")
    client.containers.delete(container.id)


@pytest.mark.parametrize("id", ["cntr_0", "%2e%2e", "..%2f..%2fetc", "cntr_" + "0" * 300, "cntr_\x00", "cfile_1"])
def test_an_unknown_id_of_any_form_is_not_found(client, container, id):
    for path in (f"/containers/{id}", f"/containers/{id}/files", f"/containers/{container.id}/files/{id}"):
        with pytest.raises(openai.NotFoundError):
            client.get(path.replace("\x00", "%00"), cast_to=object)


def test_tenants_do_not_see_each_other_and_keys_have_their_scopes(tmp_path):
    server = KeyServer(tmp_path, MODELS)

    async def keys():
        return await server.key(tenant="ada"), await server.key(tenant="ada", scopes=["responses:read"]), await server.key(tenant="bob")

    ada, reader, bob = asyncio.run(keys())
    with server.serving() as url, client_of(url, ada) as owner, client_of(url, bob) as stranger, client_of(url, reader) as viewer:
        upload = owner.files.create(file=("a", b"secret"), purpose="user_data")
        box = owner.containers.create(name="mine")
        file = owner.containers.files.create(box.id, file=("a", b"secret"))
        own = stranger.containers.create(name="own")
        files = stranger.containers.files
        for call, arguments, fields in (
            (stranger.containers.retrieve, (box.id,), {}),
            (stranger.containers.delete, (box.id,), {}),
            (files.list, (box.id,), {}),
            (files.create, (box.id,), {"file": ("x", b"y")}),
            (files.retrieve, (file.id,), {"container_id": box.id}),
            (files.retrieve, (file.id,), {"container_id": own.id}),
            (files.delete, (file.id,), {"container_id": box.id}),
            (files.content.retrieve, (file.id,), {"container_id": box.id}),
            (files.content.retrieve, (file.id,), {"container_id": own.id}),
            (files.create, (own.id,), {"file_id": upload.id}),
            (stranger.containers.create, (), {"name": "x", "file_ids": [upload.id]}),
        ):
            assert refusal_of(call, *arguments, **fields)[0] == 404
        assert [each.id for each in stranger.containers.list()] == [own.id]
        assert refusal_of(stranger.containers.list, after=box.id)[0] == 400
        assert [each.id for each in viewer.containers.list()] == [box.id]
        assert viewer.containers.files.content.retrieve(file.id, container_id=box.id).read() == b"secret"
        for call, arguments, fields in (
            (viewer.containers.create, (), {"name": "x"}),
            (viewer.containers.delete, (box.id,), {}),
            (viewer.containers.files.create, (box.id,), {"file": ("x", b"y")}),
            (viewer.containers.files.delete, (file.id,), {"container_id": box.id}),
        ):
            with pytest.raises(openai.PermissionDeniedError):
                call(*arguments, **fields)
        assert owner.containers.files.content.retrieve(file.id, container_id=box.id).read() == b"secret"


def test_containers_outlive_a_restart_and_with_a_store_in_memory_nothing_is_left(tmp_path):
    config = configured(tmp_path, MODELS, **{"logging.level": "error"})
    with background_server(config, is_persistent=True) as url, client_of(url) as client:
        box = client.containers.create(name="kept")
        add(client, box)
    with background_server(config, is_persistent=True) as url, client_of(url) as client:
        assert [each.name for each in client.containers.list()] == ["kept"]
    with background_server(config) as url, client_of(url) as client:
        assert [*client.containers.list()] == []


def test_limits_are_the_servers_and_named(tmp_path):
    limits = {"containers": 2, "disk_mib": 1, "files": 2, "expires_after_minutes": 90, "memory_limit": "4g"}
    settings = {f"tools.code_interpreter.{name}": value for name, value in limits.items()}
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error", **settings})) as url, client_of(url) as client:
        box = client.containers.create(name="a", memory_limit="4g")
        assert (box.expires_after.minutes, box.memory_limit) == (90, "4g")
        assert refusal_of(client.containers.create, name="b", memory_limit="16g") == (400, "unsupported_value", "memory_limit")
        add(client, box, b"-" * 900_000, "a")
        assert refusal_of(add, client, box, b"-" * 200_000, "b") == (400, "file_too_large", "file")
        assert refusal_of(add, client, box, b"-" * (3 << 20), "b")[:2] == (413, "file_too_large")
        add(client, box, b"-", "b")
        with pytest.raises(openai.BadRequestError, match=r"tools\.code_interpreter\.files"):
            add(client, box, b"-", "c")
        client.containers.create(name="b")
        with pytest.raises(openai.RateLimitError, match=r"tools\.code_interpreter\.containers"):
            client.containers.create(name="c")
