"""The kernels of all containers: what becomes of one that dies, and of a container that is deleted under its calls."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ClientError
from antiphon.tools.code_interpreter.containers import Containers
from antiphon.tools.code_interpreter.kernels import Kernels, PoolLimits
from antiphon.tools.code_interpreter.sandbox import Sandbox


def with_kernels(folder: Path, dialogue: Callable[[Containers, Kernels], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        containers = Containers(folder / "containers")
        sandbox = Sandbox("both", packages=())
        kernels = Kernels(containers, sandbox, folder / "running", pool=PoolLimits(kernels=1, tenant_kernels=1))
        try:
            await dialogue(containers, kernels)
        finally:
            await kernels.close()
            await containers.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.01)


def test_a_kernel_that_died_between_two_calls_takes_no_place(tmp_path):
    async def dialogue(containers: Containers, kernels: Kernels) -> None:
        container = await containers.create("ann", "work")
        await kernels.run(container, "x = 1")
        kernel = kernels._slots[container.id].kernel
        assert kernel is not None and kernel._process is not None
        os.kill(kernel._process.pid, signal.SIGKILL)
        await until(lambda: not kernel.is_alive)
        outcome = await kernels.run(container, "2 + 2")
        assert (outcome.run.logs, outcome.lost_variables) == ("4\n", True)

    with_kernels(tmp_path, dialogue)


def test_a_call_that_waits_in_a_container_that_is_deleted_starts_nothing_there(tmp_path):
    async def dialogue(containers: Containers, kernels: Kernels) -> None:
        container = await containers.create("ann", "work")

        async def wait_in_vain() -> None:
            with pytest.raises(ClientError, match="deleted"):
                await kernels.run(container, "print('hi')")

        async with asyncio.TaskGroup() as group:
            running = group.create_task(kernels.run(container, "open('started', 'w').close()\nwhile True: pass"))
            await until((containers.data_folder(container.id) / "started").exists)
            group.create_task(wait_in_vain())
            await until(lambda: kernels._slots[container.id].users == 2)
            await containers.delete("ann", container.id)
        assert running.result().run.problem is not None
        assert kernels._slots == {}

    with_kernels(tmp_path, dialogue)
