"""The settings `[[tools.functions]]`."""

from collections import Counter

from pydantic import BaseModel, Field, model_validator

from antiphon.errors import quote_list

MAX_FUNCTION_FILES = 50
LABEL = r"^[a-zA-Z][a-zA-Z0-9_-]{0,63}$"


class FunctionsEntry(BaseModel, frozen=True, extra="forbid"):
    """Functions of your own, which requests name by their label."""

    label: str = Field(pattern=LABEL, description="By which requests name them, as the `server_label` of a tool `mcp`.")
    file: str | None = Field(default=None, min_length=1, description="The Python file with the functions.")
    entry_point: str | None = Field(default=None, min_length=1, description="The entry point with the functions, instead of a file.")
    read_only: tuple[str, ...] = Field(default=(), description="The functions that change nothing.")
    call_s: float = Field(default=30, gt=0, le=3600, description="Seconds that a call may take.")
    memory_mib: int = Field(default=512, ge=16, description="MiB that a call may take, beyond what the loaded functions have.")
    output_chars: int = Field(default=100_000, ge=1, le=4_000_000, description="The most characters of a result; the rest is left out.")
    parallel: int = Field(default=4, ge=1, le=256, description="The most calls that run at once.")

    @model_validator(mode="after")
    def _validate_source(self) -> "FunctionsEntry":
        if (self.file is None) == (self.entry_point is None):
            raise ValueError("expected either `file` or `entry_point`")
        return self


def check_labels(entries: tuple[FunctionsEntry, ...]) -> tuple[FunctionsEntry, ...]:
    """
    Check that each has a label of its own.

    Raises:
        ValueError: two have the same.
    """
    if duplicates := [label for label, count in Counter(entry.label for entry in entries).items() if count > 1]:
        raise ValueError(f"more than one of them has the label {quote_list(duplicates)}")
    return entries
