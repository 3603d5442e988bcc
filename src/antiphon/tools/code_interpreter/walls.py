"""Whether the walls stand on this machine: found by building each, and trying to get over it."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import get_args

from msgspec import Struct

from antiphon.errors import ApiError
from antiphon.installation import install_hint
from antiphon.tools.code_interpreter.kernel import Kernel, KernelLimits
from antiphon.tools.code_interpreter.sandbox import Sandbox, Walls, find_bwrap

_MEMORY_BYTES, _DISK_BYTES = 1 << 30, 16 << 20

_HELD = "held"
_TRIES = f"""
import socket
def is_refused(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False
outside = is_refused(lambda: open('/etc/passwd')) and is_refused(lambda: open({{secret!r}}))
network = is_refused(lambda: socket.socket()) and is_refused(lambda: socket.socket(socket.AF_UNIX))
print('{_HELD}' if outside and network else f'files: {{{{outside}}}}, network: {{{{network}}}}')
"""


class WallReport(Struct, frozen=True):
    """
    Which walls stand.

    Attributes:
        problems: by the walls that were tried: why they don't stand; None for those that do.
    """

    problems: dict[Walls, str | None]

    def describe(self, walls: Walls) -> str:
        """Sentences for the operator who asked for `walls`."""
        problem = self.problems[walls]
        if problem is None:
            return "The code interpreter runs code behind " + _NAMES[walls] + "."
        alone = [each for each in get_args(Walls) if each != "both" and self.problems[each] is None]
        hint = f' To run code behind that wall alone, set tools.code_interpreter.sandbox = "{alone[0]}".' if alone else ""
        standing = f" {_NAMES[alone[0]].capitalize()} stands here." if alone else ""
        return f"The code interpreter is off, as {_NAMES[walls]} can't be built: {problem}.{standing}{hint}"


_NAMES: dict[Walls, str] = {
    "both": "two walls, namespaces and Landlock",
    "namespaces-only": "one wall, namespaces",
    "landlock-only": "one wall, Landlock",
}


async def try_walls(folder: Path, walls: Walls) -> WallReport:
    """
    Start a process behind walls, and let it try to read a file outside and to open sockets; if they don't stand, the others
    are tried too, so that the operator knows which do.

    Args:
        folder: for what it needs, such as the containers' own: what works in one may not in another.
    """
    problems: dict[Walls, str | None] = {walls: await _try(walls, folder)}
    if problems[walls] is not None:
        for others in get_args(Walls):
            if others != walls:
                problems[others] = await _try(others, folder)
    return WallReport(problems)


async def _try(walls: Walls, folder: Path) -> str | None:
    if walls != "landlock-only" and find_bwrap() is None:
        return f"bubblewrap is not installed. {install_hint('tools')}".removesuffix(".")
    await asyncio.to_thread(folder.mkdir, 0o700, parents=True, exist_ok=True)
    home = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="walls-", dir=folder))
    secret = home / "secret"
    data_folder = home / "data"
    secret.write_text("secret")
    data_folder.mkdir()
    sandbox = Sandbox(walls, packages=())
    kernel = Kernel(sandbox, KernelLimits(), data_folder, home / "run", memory_bytes=_MEMORY_BYTES, disk_bytes=_DISK_BYTES)
    try:
        await kernel.start()
        outcome = await kernel.run(_TRIES.format(secret=str(secret)), _DISK_BYTES)
    except ApiError as error:
        return error.operator_message.removesuffix(".")
    finally:
        await kernel.stop()
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
    return None if outcome.logs.strip() == _HELD else outcome.problem or outcome.logs.strip()
