"""A kernel from outside: cancelled, left alone, orphaned, and what it may import and show."""

import asyncio
import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from antiphon.tools.code_interpreter.kernel import Kernel, KernelLimits
from antiphon.tools.code_interpreter.sandbox import Sandbox, Walls
from antiphon.tools.code_interpreter.walls import WallReport
from antiphon.tools.code_interpreter.watch import descendants

MIB = 1 << 20
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def with_kernel(folder: Path, dialogue: Callable[[Kernel], Coroutine[Any, Any, None]], walls: Walls = "both", **options: Any) -> None:
    async def run() -> None:
        data = folder / "data"
        data.mkdir()
        sandbox = Sandbox(walls, packages=(), **options)
        kernel = Kernel(sandbox, KernelLimits(), data, folder / "scratch", memory_bytes=256 * MIB, disk_bytes=16 * MIB)
        await kernel.start()
        try:
            await dialogue(kernel)
        finally:
            await kernel.stop()
            await kernel.stop()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.01)


def states(pid: int) -> set[str]:
    """The states of all processes that come from one, such as `T` for one that is stopped."""
    return {Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] for each in descendants(pid)}


def test_cancelling_stops_the_code_and_keeps_the_variables(tmp_path):
    async def dialogue(kernel: Kernel) -> None:
        await kernel.run("x = 1", MIB)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(kernel.run("open('started', 'w').close(); x = 2\nwhile True: pass", MIB))
            await until((tmp_path / "data" / "started").exists)
            running.cancel()
        await until(lambda: states(kernel._process.pid) == {"T"})
        assert (await kernel.run("x", MIB)).logs == "2\n"

    with_kernel(tmp_path, dialogue)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("for i in range(1100): open(f'{i}', 'w').close()", "tools.code_interpreter.files"),
        ("for i in range(3): open(f'{i}', 'w').truncate(500_000)", "tools.code_interpreter.disk_mib"),
    ],
)
def test_code_that_is_quicker_than_the_watcher_is_held_to_its_limits(tmp_path, monkeypatch, code, name):
    monkeypatch.setattr("antiphon.tools.code_interpreter.kernel.WATCH_INTERVAL_S", 60)

    async def dialogue(kernel: Kernel) -> None:
        outcome = await kernel.run(code, MIB)
        assert outcome.went_over_disk and not outcome.is_alive and name in (outcome.problem or "")

    with_kernel(tmp_path, dialogue)


@pytest.mark.parametrize("walls", ["both", "landlock-only"])
def test_nothing_runs_between_calls(tmp_path, walls):
    async def dialogue(kernel: Kernel) -> None:
        code = "import threading\ndef work():\n  global n\n  while True: n += 1\nn = 0\nthreading.Thread(target=work, daemon=True).start()"
        assert (await kernel.run(code, MIB)).is_alive
        await until(lambda: states(kernel._process.pid) == {"T"})
        assert int((await kernel.run("n", MIB)).logs) >= 0

    with_kernel(tmp_path, dialogue, walls)


def test_pictures_are_shown_in_their_order_and_no_more_than_the_limit(tmp_path):
    async def dialogue(kernel: Kernel) -> None:
        code = f"class P:\n  def _repr_png_(self): return {PNG!r}\ndisplay(P())\nprint('between')\nP()"
        outcome = await kernel.run(code, MIB)
        assert (outcome.images, outcome.logs) == ((PNG, PNG), "between\n")
        assert len((await kernel.run("for _ in range(20): display(P())", MIB)).images) == KernelLimits().images
        assert (await kernel.run("class Q(P):\n  def _repr_png_(self): return b'<svg>'\nQ()", MIB)).images == ()

    with_kernel(tmp_path, dialogue)


def test_the_beginning_and_the_end_of_a_long_output_are_there(tmp_path):
    async def dialogue(kernel: Kernel) -> None:
        logs = (await kernel.run("print('first')\nprint('é' * 10**6)\n1 / 0", MIB)).logs
        assert logs.startswith("first\n")
        assert "bytes are left out here (tools.code_interpreter.output_kib)" in logs
        assert logs.endswith("ZeroDivisionError: division by zero\n")
        assert len(logs) < KernelLimits().output_bytes + 200

    with_kernel(tmp_path, dialogue)


@pytest.mark.parametrize("walls", ["both", "namespaces-only", "landlock-only"])
def test_a_folder_of_packages_takes_the_place_of_the_servers(tmp_path, walls):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "greeting.py").write_text("text = 'hello'")

    async def dialogue(kernel: Kernel) -> None:
        assert (await kernel.run("import greeting; greeting.text", MIB)).logs == "'hello'\n"
        assert "ModuleNotFoundError" in (await kernel.run("import numpy", MIB)).logs

    with_kernel(tmp_path, dialogue, walls, packages_folder=packages)


def test_without_namespaces_texts_with_the_folders_name_lead_to_it(tmp_path):
    async def dialogue(kernel: Kernel) -> None:
        code = "name = 'a.txt'\nopen(f'/mnt/data/{name}', 'w').write('x')\nprint(open(b'/mnt/data/a.txt').read(), '/mnt/data')"
        assert (await kernel.run(code, MIB)).logs == "x /mnt/data\n"
        logs = (await kernel.run("import os, json; print(os.getcwd(), os.__file__); json.loads('{')", MIB)).logs
        assert logs.startswith("/mnt/data /opt/python/lib/")
        assert str(tmp_path) not in logs
        assert sys.base_prefix not in logs or sys.base_prefix == "/usr"

    with_kernel(tmp_path, dialogue, "landlock-only")


ORPHAN = """
import asyncio, os, sys
from pathlib import Path
from antiphon.tools.code_interpreter.kernel import Kernel, KernelLimits
from antiphon.tools.code_interpreter.sandbox import Sandbox
from antiphon.tools.code_interpreter.watch import descendants
async def main(folder, walls):
    (folder / 'data').mkdir()
    limits = {'memory_bytes': 1 << 28, 'disk_bytes': 1 << 24}
    kernel = Kernel(Sandbox(walls, packages=()), KernelLimits(), folder / 'data', folder / 'scratch', **limits)
    await kernel.start()
    print(*descendants(kernel._process.pid), flush=True)
    await kernel.run('while True: pass', 1 << 24)
asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("walls", ["both", "landlock-only"])
def test_code_dies_with_a_server_that_is_killed(tmp_path, walls):
    command = [sys.executable, "-c", ORPHAN, str(tmp_path), walls]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pids = [int(pid) for pid in server.stdout.readline().split()]
        assert pids
        server.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is more than the entry of one that ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_machine_with_one_wall_is_told_how_to_use_it():
    report = WallReport({"both": "x", "namespaces-only": "the kernel refuses namespaces", "landlock-only": None})
    text = report.describe("both")
    assert "The code interpreter is off" in text
    assert 'tools.code_interpreter.sandbox = "landlock-only"' in text
    assert "one wall, Landlock" in report.describe("landlock-only")
    none = WallReport({"both": "x", "namespaces-only": "y", "landlock-only": "z"})
    assert "sandbox" not in none.describe("both")


def test_a_process_has_no_more_descriptors_after_a_kernel_has_ended(tmp_path):
    before = len(os.listdir("/proc/self/fd"))

    async def dialogue(kernel: Kernel) -> None:
        await kernel.run("1", MIB)

    with_kernel(tmp_path, dialogue)
    assert len(os.listdir("/proc/self/fd")) == before
