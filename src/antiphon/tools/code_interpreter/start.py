"""Makes the tool from its settings."""

from pathlib import Path

from antiphon.config.tools.code_interpreter import CodeInterpreterSettings
from antiphon.tools.code_interpreter.containers import Containers
from antiphon.tools.code_interpreter.kernel import KernelLimits
from antiphon.tools.code_interpreter.kernels import Kernels, PoolLimits
from antiphon.tools.code_interpreter.records import ContainerLimits
from antiphon.tools.code_interpreter.sandbox import Sandbox
from antiphon.tools.code_interpreter.tool import CodeInterpreterKind, Uploads
from antiphon.tools.code_interpreter.walls import try_walls


async def start_code_interpreter(
    settings: CodeInterpreterSettings, folder: Path, uploads: Uploads
) -> tuple[CodeInterpreterKind | None, str]:
    """
    The tool, if the walls that the settings ask for stand here, and sentences for the operator.

    Args:
        folder: for containers and what runs in them; servers of one machine may share it.
    """
    walls = settings.sandbox
    if walls == "off":
        return None, "The code interpreter is off (tools.code_interpreter.sandbox)."
    report = await try_walls(folder, walls)
    if report.problems[walls] is not None:
        return None, report.describe(walls)
    limits = ContainerLimits(
        containers=settings.containers,
        bytes=settings.disk_mib << 20,
        tenant_bytes=settings.tenant_disk_mib << 20,
        files=settings.files,
        expires_after_minutes=settings.expires_after_minutes,
        memory_limit=settings.memory_limit,
    )
    containers = Containers(folder / "containers", limits)
    kernels = Kernels(
        containers,
        Sandbox(walls, settings.packages, settings.packages_folder),
        folder / "running",
        KernelLimits(run_s=settings.run_s, processes=settings.processes, output_bytes=settings.output_kib << 10, files=settings.files),
        PoolLimits(kernels=settings.kernels, tenant_kernels=settings.tenant_kernels),
    )
    return CodeInterpreterKind(containers, kernels, uploads), report.describe(walls)
