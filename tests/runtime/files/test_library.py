"""The sweep, and uploads that do not end."""

import pytest

from antiphon.config.settings import FilesSettings, ServerSettings
from antiphon.errors import ClientError, ServerError
from antiphon.runtime.access.body_budget import BodyBudget
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.files.library import UPLOAD_TIMEOUT_S, FileLibrary
from antiphon.stores.blobs import BlobStore
from antiphon.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

ADA = Caller("ada")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Desk:
    """A library, its clock, and where its bytes are."""

    def __init__(self, folder):
        self.now = 1000.0
        self.folder = folder
        self.budget = BodyBudget(ServerSettings())
        self.store = MemoryStore()
        self.library = FileLibrary(self.store.files, BlobStore(str(folder)), FilesSettings(), lambda: self.now)

    def upload(self):
        return self.library.upload(ADA, self.budget.lease("ada"), 0)

    async def file(self, expires_in_s=None):
        async with self.upload() as upload:
            await upload.write(chunks())
            return await upload.finish("a.txt", "batch", expires_in_s)

    @property
    def folders(self):
        return [path.name for path in self.folder.iterdir()] if self.folder.exists() else []

    async def count(self):
        return (await self.store.files.usage("ada")).count


async def chunks():
    yield b"hello"


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "files")


async def test_an_expired_file_is_unknown_at_once_and_then_deleted(desk):
    file = await desk.file(3600)
    desk.now += 3599
    await desk.library.sweep()
    assert (await desk.library.find("ada", file.id)).id == file.id
    desk.now += 1
    with pytest.raises(ClientError):
        await desk.library.find("ada", file.id)
    await desk.library.sweep()
    assert (desk.folders, await desk.count()) == ([], 0)


async def test_a_deletion_that_was_cut_short_is_completed(desk):
    file = await desk.file()
    await desk.store.files.hide("ada", file.id, 1001)  # as far as a deletion came before its server died
    with pytest.raises(ClientError):
        await desk.library.find("ada", file.id)
    assert desk.folders == [file.id]
    await desk.library.sweep()
    assert (desk.folders, await desk.count()) == ([], 0)


async def test_a_file_that_can_not_be_deleted_keeps_no_others(desk):
    files = [await desk.file(3600) for _ in range(3)]

    async def refuse(tenant, file_id):
        if file_id == files[0].id:
            raise ServerError("not now")

    desk.library.before_erasure = refuse
    desk.now += 3600
    with pytest.raises(ServerError, match="not now"):
        await desk.library.sweep()
    assert (desk.folders, await desk.count()) == ([files[0].id], 1)
    desk.library.before_erasure = None
    await desk.library.sweep()
    assert (desk.folders, await desk.count()) == ([], 0)


async def test_an_upload_that_never_ends_is_deleted_and_can_not_be_finished(desk):
    with pytest.raises(ServerError):
        async with desk.upload() as upload:
            await upload.write(chunks())
            await desk.library.sweep()
            assert await desk.count() == 1
            desk.now += 2 * UPLOAD_TIMEOUT_S + 1
            await desk.library.sweep()
            assert (desk.folders, await desk.count()) == ([], 0)
            await upload.finish("a.txt", "batch", None)
    assert (desk.folders, await desk.count()) == ([], 0)


async def test_an_upload_that_is_not_finished_leaves_nothing(desk):
    with pytest.raises(ZeroDivisionError):
        async with desk.upload() as upload:
            await upload.write(chunks())
            raise ZeroDivisionError
    assert (desk.folders, await desk.count()) == ([], 0)
