"""Start and run asynchronous speech models in synchronous tests."""

import asyncio
import contextlib


def run(scenario):
    async def in_time():
        async with asyncio.timeout(120):
            return await scenario

    return asyncio.run(in_time())


@contextlib.asynccontextmanager
async def started(component):
    """A started transcriber or synthesizer, stopped at the end."""
    await component.start()
    try:
        yield component
    finally:
        await component.stop()
