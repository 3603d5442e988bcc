"""The queue of files to be indexed: whose turn it is."""

import asyncio

from antiphon.records import IndexedFileRecord, IndexingJob, VectorStoreRecord
from antiphon.runtime.vector_stores.queue import IndexingQueue
from antiphon.stores.memory import MemoryStore


def file(file_id: str, store_id: str) -> IndexedFileRecord:
    return IndexedFileRecord(store_id=store_id, file_id=file_id, filename="a.txt", created_at=100, max_chunk_tokens=800, overlap_tokens=400)


def test_no_tenant_waits_for_anothers_large_files():
    async def main() -> None:
        store = MemoryStore()

        async def add(tenant: str, names: str) -> None:
            record = VectorStoreRecord(id=f"vs_{tenant}", tenant=tenant, created_at=100, last_active_at=100)
            await store.vector_stores.create(record, [file(name, record.id) for name in names])

        await add("ada", "abcd")
        begun: asyncio.Queue[str] = asyncio.Queue()
        ends = {name: asyncio.Event() for name in "abcdefgh"}

        async def work(job: IndexingJob) -> None:
            begun.put_nowait(job.file.file_id)
            await ends[job.file.file_id].wait()
            await store.indexes.finish(job.file.number, "completed")

        async def begin(count: int) -> set[str]:
            async with asyncio.timeout(30):
                return {await begun.get() for _ in range(count)}

        queue = IndexingQueue(store.indexes, work, 2)
        queue.start()
        assert await begin(2) == {"a", "b"}
        for tenant, names in {"bob": "ef", "cyd": "g", "dan": "h"}.items():
            await add(tenant, names)
        queue.wake()
        assert await begin(2) == {"e", "g"}  # twice the limit, and one of each
        ends["e"].set()
        assert await begin(1) == {"h"}
        await queue.close()

    asyncio.run(main())
