"""Uploaded files for tools that need one whole."""

import pytest

from antiphon.errors import ClientError
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.files.reading import file_reader
from antiphon.runtime.service import Service
from support.server.scripted_server import configured
from support.speech.running import run


def test_a_file_is_read_whole_by_its_tenant_alone(tmp_path):
    async def scenario():
        service = Service(configured(tmp_path, {}, **{"store.url": "memory"}), print)
        await service.open()
        try:
            file_id = await stored(service, b"owl" * 1000)
            assert await file_reader(service.files, 3000)("", file_id, "mask") == b"owl" * 1000
            for reader, tenant, name, code in (
                (file_reader(service.files, 2999), "", file_id, "file_too_large"),
                (file_reader(service.files, 3000), "other", file_id, None),
                (file_reader(service.files, 3000), "", "file-0", None),
                (file_reader(service.files, 3000), "", "../x", "invalid_value"),
            ):
                with pytest.raises(ClientError) as caught:
                    await reader(tenant, name, "mask")
                assert (caught.value.code, caught.value.param) == (code, "mask")
        finally:
            await service.close()

    run(scenario())


async def stored(service, content):
    async def chunks():
        yield content

    async with service.files.upload(Caller(""), service.body_budget.lease(""), len(content)) as upload:
        await upload.write(chunks())
        record = await upload.finish("a.png", "vision", None)
    return record.id
