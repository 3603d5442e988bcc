"""Files are stored in the same way in a folder, in S3, and in memory."""

import pytest

from antiphon.errors import ServerError
from antiphon.stores.blobs import Blob, BlobStore
from support.stores.s3_double import s3

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def bucket(monkeypatch):
    with s3() as (url, objects):
        named = {"ENDPOINT_URL": url, "ALLOW_HTTP": "true", "ACCESS_KEY_ID": "ada", "SECRET_ACCESS_KEY": "lovelace", "REGION": "eu"}
        for name, value in named.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield objects


@pytest.fixture(params=["folder", "memory", "s3"])
def blobs(request, tmp_path):
    if request.param == "s3":
        request.getfixturevalue("bucket")
    return BlobStore({"folder": str(tmp_path / "kept"), "memory": "memory:///", "s3": "s3://recordings/here"}[request.param])


def made(tmp_path, name="sess_1", **files):
    folder = tmp_path / "made" / name
    for file, content in {"meta.json": b"{}", "frames/1.jpg": b"picture", "in.wav": bytes(range(100)), **files}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


async def read(blobs, name, *span):
    return b"".join([piece async for piece in blobs.read_chunks(name, *span)])


async def test_a_folder_is_kept_whole_and_let_go(blobs, tmp_path):
    folder = made(tmp_path)
    await blobs.put_folder(folder, "sess_1")
    assert not folder.exists()
    assert await blobs.list_files("sess_1") == [Blob("frames/1.jpg", 7), Blob("in.wav", 100), Blob("meta.json", 2)]
    assert await read(blobs, "sess_1/frames/1.jpg") == b"picture"


async def test_a_part_of_a_file_can_be_read(blobs, tmp_path):
    await blobs.put_folder(made(tmp_path), "sess_1")
    assert await read(blobs, "sess_1/in.wav", 10, 13) == bytes([10, 11, 12])
    assert await read(blobs, "sess_1/in.wav", 98) == bytes([98, 99])
    assert await read(blobs, "sess_1/in.wav", 5, 5) == b""


async def test_a_folder_that_was_kept_before_is_no_mistake(blobs, tmp_path):
    folder = made(tmp_path)
    await blobs.put_folder(folder, "sess_1")
    await blobs.put_folder(folder, "sess_1")
    assert len(await blobs.list_files("sess_1")) == 3


async def test_a_folder_is_forgotten_and_no_other(blobs, tmp_path):
    for name in ("sess_1", "sess_11"):
        await blobs.put_folder(made(tmp_path, name), name)
    await blobs.delete_folder("sess_1")
    await blobs.delete_folder("sess_1")
    assert await blobs.list_files("sess_1") == []
    assert len(await blobs.list_files("sess_11")) == 3


async def test_what_is_not_there_is_a_fault(blobs):
    with pytest.raises(ServerError, match="can't be read"):
        await read(blobs, "sess_1/in.wav")


async def test_in_a_bucket_the_files_stand_under_the_prefix(bucket, tmp_path):
    await BlobStore("s3://recordings/here").put_folder(made(tmp_path), "sess_1")
    assert sorted(bucket) == [f"recordings/here/sess_1/{name}" for name in ("frames/1.jpg", "in.wav", "meta.json")]


async def test_a_bucket_that_refuses_leaves_the_folder_as_it_was(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ada")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lovelace")
    folder = made(tmp_path)
    told = []
    blobs = BlobStore("s3://recordings", told.append)
    for _ in range(2):
        with pytest.raises(ServerError, match="can't be written") as refusal:  # without AWS_ALLOW_HTTP
            await blobs.put_folder(folder, "sess_1")
    assert (folder / "in.wav").exists()
    # What is wrong is for the operator to know, once, and not for clients.
    assert "recordings" not in refusal.value.message and refusal.value.status == 503
    (line,) = told
    assert line.startswith("The files at s3://recordings can't be written: ") and "lovelace" not in line


async def test_a_stream_is_stored_as_one_file(blobs):
    async def chunks():
        for number in range(130):
            yield bytes([number]) * (100 << 10)

    await blobs.put_stream("file-1/content", chunks())
    assert await blobs.list_files("file-1") == [Blob("content", 130 * (100 << 10))]
    assert await read(blobs, "file-1/content", 129 * (100 << 10)) == bytes([129]) * (100 << 10)


async def test_nothing_is_left_of_a_stream_that_breaks(blobs):
    class Break(Exception):
        pass

    async def chunks():
        for _ in range(8):
            yield bytes(1 << 20)
        raise Break

    with pytest.raises(Break):
        await blobs.put_stream("file-1/content", chunks())
    assert await blobs.list_files("file-1") == []
