"""The settings `[tools.vector_stores]`."""

from pydantic import BaseModel, Field


class VectorStoreSettings(BaseModel, frozen=True, extra="forbid"):
    """What vector stores may hold, and how they are indexed and searched."""

    tenant_stores: int = Field(default=1000, ge=0, description="The most vector stores of a tenant; 0 for any number.")
    tenant_gb: float = Field(default=10, ge=0, description="The most that a tenant's vector stores may take, in GB; 0 for no limit.")
    store_files: int = Field(default=10_000, ge=1, description="The most files in a vector store.")
    file_mib: int = Field(default=128, ge=1, description="The largest file that is indexed, in MiB. One is read at a time per indexer.")
    file_chars: int = Field(default=20_000_000, ge=1000, description="The most characters of text that a file may have to be indexed.")
    indexers: int = Field(
        default=2, ge=1, le=64, description="How many files a process indexes at once; tenants with none among them have as many more."
    )
    index_mib: int = Field(
        default=2048, ge=16, description="What the indexes of a process may take, in memory and temporary files, in MiB, about."
    )
    index_disk_mib: int = Field(
        default=4096, ge=0, description="What indexes may take on the disk that wait there for their next use, in MiB; 0: none are kept."
    )
    idle_minutes: float = Field(default=15, gt=0, description="How long an index that nobody uses stays in memory.")
    searches: int = Field(default=4, ge=1, le=64, description="How many searches a process makes at once.")
