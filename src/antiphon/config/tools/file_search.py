"""The settings `[tools.file_search]`."""

from pydantic import BaseModel, Field


class FileSearchSettings(BaseModel, frozen=True, extra="forbid"):
    """How files are read, and how much of them the model reads."""

    result_chars: int = Field(default=60_000, ge=1000, description="The most characters of excerpts that the model reads of one search.")
    parsers: int = Field(default=2, ge=1, le=64, description="How many files are parsed at once, each in a process of its own.")
    parse_s: float = Field(default=120, gt=0, description="Seconds after which the process that parses a file is killed.")
    parse_cpu_s: int = Field(default=30, ge=1, description="Seconds of a processor that parsing a file may take.")
    parse_mib: int = Field(default=768, ge=128, description="The memory of that process, in MiB; it may take three times the file more.")
