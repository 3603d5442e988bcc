"""Running what is asynchronous and has to be started, in a test that is neither."""

import asyncio
import contextlib


def run(scenario):
    async def in_time():
        async with asyncio.timeout(120):
            return await scenario

    return asyncio.run(in_time())


@contextlib.asynccontextmanager
async def started(component):
    """A transcriber or a synthesizer, stopped in the end."""
    await component.start()
    try:
        yield component
    finally:
        await component.stop()
