"""What a MiniCPM-o session begins with."""

from typing import Literal

from msgspec import Struct

from antiphon.engine_api.capabilities import Capabilities


class MinicpmoSessionConfig(Struct, frozen=True, kw_only=True):
    """
    What a session begins with; times are in seconds.

    Attributes:
        model: the name that the client asked for.
        abilities: of its engine.
        session_id: what the session is called.
        resume_token: with which a client that lost its network comes back; None where none can.
        is_queued: whether the engine says `WorkerAssigned` when there is a place; where it doesn't, there is one at once.
        instructions: what the model is told where the client says nothing.
        lasts_s: how long the session may last, counted from when there was a place.
        warning_s: how long before that the client is told.
        init_s: how long a client that has a place may take to begin.
        idle_s: how long it may then be silent: without sound, or in chat without a question.
    """

    model: str
    capabilities: Capabilities
    mode: Literal["chat", "audio", "video"] = "video"
    session_id: str
    resume_token: str | None = None
    is_queued: bool = True
    instructions: str | None = None
    max_duration_s: float = 300
    warning_s: float = 30
    init_timeout_s: float = 30
    idle_timeout_s: float = 60
