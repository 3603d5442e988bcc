"""The settings `[tools]`."""

from pydantic import BaseModel, Field


class ToolsSettings(BaseModel, frozen=True, extra="forbid"):
    """The tools that the server runs, and their limits."""

    call_s: float = Field(default=120, gt=0, description="Seconds that a call of a tool may take.")
    calls: int = Field(default=128, ge=1, description="The most calls in one response; the model is told when it has made them.")
    turns: int = Field(default=32, ge=1, description="The most times that the model is asked in one response; the last time without tools.")
    parallel: int = Field(default=8, ge=1, description="The most calls of one response that run at once.")
    output_chars: int = Field(default=200_000, ge=1000, description="The most characters of one call's result that the model reads.")
