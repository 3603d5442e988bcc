"""Vector stores of a server of several processes, of one that is killed, and of several tenants."""

import asyncio

import openai
import pytest

from support.server.key_server import KeyServer
from support.server.own_process import serving

MODELS = [{"name": "parrot", "engine": "scripted"}]


def client_of(url, key="none"):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def test_a_file_that_a_killed_server_was_indexing_is_indexed_by_the_next(tmp_path, models_dir):
    (tmp_path / ".cache/antiphon").mkdir(parents=True)
    (tmp_path / ".cache/antiphon/models").symlink_to(models_dir)
    settings = {"logging.level": "error"}
    long = " ".join(f"word{number}" for number in range(10_000))
    with serving(tmp_path, MODELS, **settings) as (process, url):
        client = client_of(url)
        store = client.vector_stores.create()
        first = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("owls.txt", b"Owls hunt at night"))
        assert first.status == "completed"
        file = client.vector_stores.files.upload(vector_store_id=store.id, file=("long.txt", long.encode()))
        while not (state := client.vector_stores.files.retrieve(file.id, vector_store_id=store.id)).usage_bytes:
            assert state.status == "in_progress" and process.poll() is None
        process.kill()
        process.wait()
    with serving(tmp_path, MODELS, processes=2, **settings) as (_, url):
        client = client_of(url)
        assert client.vector_stores.files.poll(file.id, vector_store_id=store.id).status == "completed"
        for _ in range(4):  # whichever process answers
            with client_of(url) as each:
                assert each.vector_stores.search(store.id, query="word9999", max_num_results=1).data[0].file_id == file.id
        pieces = client.vector_stores.files.content(file.id, vector_store_id=store.id)
        assert "".join(piece.text for piece in pieces) == long
        client.files.delete(first.id)
        for _ in range(4):
            with client_of(url) as each:
                found = each.vector_stores.search(store.id, query="owls at night").data
                assert first.id not in {result.file_id for result in found}


def test_tenants_and_scopes_are_kept_apart(tmp_path, models_dir):
    server = KeyServer(tmp_path, {"parrot": {"engine": "scripted"}}, **{"models_dir": str(models_dir), "logging.level": "error"})

    async def keys():
        return (
            await server.key(tenant="ada"),
            await server.key(tenant="ada", scopes=["responses:read"]),
            await server.key(tenant="bob"),
        )

    ada, reader, bob = asyncio.run(keys())
    with server.serving() as url:
        owner, reader, stranger = (client_of(url, key) for key in (ada, reader, bob))
        store = owner.vector_stores.create(name="Notes")
        file = owner.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("owls.txt", b"Owls hunt at night"))
        assert reader.vector_stores.search(store.id, query="owls").data[0].file_id == file.id
        for call in (lambda: reader.vector_stores.create(), lambda: reader.vector_stores.delete(store.id)):
            with pytest.raises(openai.PermissionDeniedError):
                call()
        own = stranger.vector_stores.create()
        assert [each.id for each in stranger.vector_stores.list()] == [own.id]
        for call in (
            lambda: stranger.vector_stores.retrieve(store.id),
            lambda: stranger.vector_stores.update(store.id, name="Mine"),
            lambda: stranger.vector_stores.delete(store.id),
            lambda: stranger.vector_stores.search(store.id, query="owls"),
            lambda: stranger.vector_stores.files.list(store.id),
            lambda: stranger.vector_stores.files.content(file.id, vector_store_id=store.id),
            lambda: stranger.vector_stores.files.create(own.id, file_id=file.id),
            lambda: stranger.vector_stores.create(file_ids=[file.id]),
        ):
            with pytest.raises(openai.NotFoundError):
                call()
        with pytest.raises(openai.BadRequestError):
            stranger.vector_stores.list(after=store.id)
