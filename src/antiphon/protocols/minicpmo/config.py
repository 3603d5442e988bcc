"""The configuration of a MiniCPM-o session."""

from typing import Literal

from msgspec import Struct

from antiphon.engine_api.capabilities import Capabilities


class MinicpmoSessionConfig(Struct, frozen=True, kw_only=True):
    """
    The configuration of a session; times are in seconds.

    Attributes:
        model: the name that the client requested.
        capabilities: of its engine.
        resume_token: lets a client that lost its network resume the session; None if it can't.
        resume_s: how long a resumable session waits for its client.
        is_queued: whether the engine sends `WorkerAssigned` when a worker is free; if not, the session has one at once.
        instructions: the system prompt if the client sends none.
        max_duration_s: how long the session may last, from when a worker was assigned.
        warning_s: how long before that end the client is warned.
        init_timeout_s: how long a client with a worker may take to send `session.init`.
        idle_timeout_s: how long the client may be silent: without audio, or in chat without a question.
    """

    model: str
    capabilities: Capabilities
    mode: Literal["chat", "audio", "video"] = "video"
    session_id: str
    resume_token: str | None = None
    resume_s: float = 20
    is_queued: bool = True
    instructions: str | None = None
    max_duration_s: float = 300
    warning_s: float = 30
    init_timeout_s: float = 30
    idle_timeout_s: float = 60
