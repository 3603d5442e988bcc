"""The settings `[tools.code_interpreter]`."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, field_validator


class CodeInterpreterSettings(BaseModel, frozen=True, extra="forbid"):
    """The containers in which the model's Python runs, and their limits."""

    sandbox: Literal["both", "namespaces-only", "landlock-only", "off"] = Field(
        default="both", description="The walls that must stand before code runs: both, or one alone; `off`: no code runs."
    )
    run_s: float = Field(default=60, gt=0, description="Seconds that a call may run; less than `tools.call_s`.")
    memory_limit: Literal["1g", "4g", "16g", "64g"] = Field(default="1g", description="The most memory that a container may ask for.")
    processes: int = Field(default=16, ge=1, description="The most processes of a container at once.")
    output_kib: int = Field(default=256, ge=1, description="The most KiB of what a call prints that is kept.")
    disk_mib: int = Field(default=512, ge=1, description="The most MiB of a container's files.")
    tenant_disk_mib: int = Field(default=4096, ge=1, description="The most MiB of all files in a tenant's containers.")
    files: int = Field(default=1000, ge=1, description="The most files and folders in a container.")
    containers: int = Field(default=100, ge=1, description="The most containers of a tenant that have not expired.")
    expires_after_minutes: int = Field(default=20, ge=1, description="The most minutes that an unused container is kept.")
    kernels: int = Field(default=8, ge=1, description="The most containers with a running Python at once.")
    tenant_kernels: int = Field(default=4, ge=1, description="The most of them that are one tenant's.")
    packages: tuple[str, ...] = Field(
        default=("numpy", "pandas", "matplotlib", "pillow"),
        description="Packages of the server's environment that code may import, those that are installed.",
    )
    packages_folder: Path | None = Field(default=None, description="A folder of packages that code may import instead.")

    @field_validator("packages", mode="before")
    @classmethod
    def _split_commas(cls, names: object) -> object:
        # Environment variables have names separated by commas.
        return [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else names
