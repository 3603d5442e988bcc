"""
Responses of the queue and worker routes, with the fields that MiniCPM-o's pages and clients read.

Times are in Unix seconds.
"""

from typing import Literal

from antiphon.engine_api.capabilities import Capabilities
from antiphon.wire.codec.types import Wire

WorkerStatus = Literal["idle", "busy", "draining", "quarantined", "offline"]


WarmUpState = Literal["off", "running", "done", "failed"]
"""How far the speech models of a server are loaded after its start; `off` where there are none, or it waits for a session."""


class QueueTicket(Wire, kw_only=True):
    """
    A ticket that waits or is served.

    Attributes:
        request_type: the kind of conversation, by its name in MiniCPM-o's pages.
        position: 1 is next; null while it is served.
        estimated_wait_s: null while it is served.
        worker_id: null while it waits.
    """

    ticket_id: str
    status: Literal["queued", "serving"]
    model: str
    kind: str
    request_type: str
    tenant: str
    key_id: str | None
    enqueued_at: float
    position: int | None
    estimated_wait_s: float | None
    worker_id: str | None
    started_at: float | None


class QueueStatus(Wire, kw_only=True):
    """All tickets: the waiting ones in order, and those being served; `now` is the server's clock."""

    now: float
    queue_length: int
    max_queue_size: int
    items: list[QueueTicket]
    running_tasks: list[QueueTicket]


class TicketCancelled(Wire, kw_only=True):
    """A cancelled ticket."""

    ticket_id: str
    cancelled: Literal[True] = True


class WorkerStatusEntry(Wire, kw_only=True):
    """
    A worker.

    Attributes:
        slots: conversations at a time; null for no limit.
        taken: slots in use.
        failures: in a row.
        silent_s: seconds since it was last heard from; null for a worker without a link. Likewise `version`, of
            antiphon there.
        abilities: of its engine.
        sessions: the tickets that it serves.
    """

    worker_id: str
    model: str
    address: str
    status: WorkerStatus
    kinds: list[str]
    slots: int | None
    taken: int
    total_requests: int
    failures: int
    joined_at: float
    silent_s: float | None
    version: str | None
    abilities: Capabilities
    sessions: list[QueueTicket]


class UpstreamStatus(Wire, kw_only=True):
    """
    One of a model's upstreams, as the process that answers sees it.

    Attributes:
        state: `ready`; `full`, with as many requests as it may have; `resting`, as it said when to come again; `open`, as
            it failed too often; or `half_open` while one request is tried.
        outstanding: requests that it has.
        requests: how many it got; `answered`: how many it began to answer; `affine`: how many it got because their
            conversation belongs there.
        failures: one after another.
        first_output_s: the moving average of the time to its first output; null before the first.
        rest_s: seconds until it gets requests again; null if it does.
        reason: of its latest failure, in a word; empty if it has answered since.
    """

    model: str
    name: str
    state: Literal["ready", "full", "resting", "open", "half_open"]
    weight: float
    outstanding: int
    concurrency: int
    requests: int
    answered: int
    affine: int
    failures: int
    first_output_s: float | None
    rest_s: float | None
    reason: str


class WorkerList(Wire, kw_only=True):
    """All workers, and the upstreams of models that have several; `now` is the server's clock."""

    now: float
    total: int
    workers: list[WorkerStatusEntry]
    upstreams: tuple[UpstreamStatus, ...] = ()


class WorkerRemoved(Wire, kw_only=True):
    """A worker that was removed."""

    worker_id: str
    removed: Literal[True] = True


class GatewayStatus(Wire, kw_only=True):
    """
    Numbers of workers and tickets, and the upstreams of models that have several.

    Attributes:
        gateway_healthy: whether the server takes new conversations.
        warm_up: how far the speech models are.
        duplex_workers: busy workers with a full-duplex conversation.
        loading_workers: always 0: a worker joins when it has loaded its model.
        error_workers: workers in quarantine.
        answers: that ended in the last hour; likewise `errors`, those of them that failed, and `refusals`, requests that were
            answered with 429 or 503.
        first_token_p50_s: of streams in the last 15 minutes, to 5 %; null without any. Likewise `first_token_p99_s`.
    """

    gateway_healthy: bool
    warm_up: WarmUpState
    total_workers: int
    idle_workers: int
    busy_workers: int
    duplex_workers: int
    loading_workers: Literal[0] = 0
    draining_workers: int
    error_workers: int
    offline_workers: int
    queue_length: int
    max_queue_size: int
    running_tasks: list[QueueTicket]
    answers: int
    errors: int
    refusals: int
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    upstreams: tuple[UpstreamStatus, ...] = ()


class MeanDuration(Wire, kw_only=True):
    """The average duration of a kind of conversation."""

    model: str
    kind: str
    request_type: str
    mean_s: float
    samples: int


class EtaConfig(Wire, kw_only=True):
    """
    The basis of waiting-time estimates.

    Attributes:
        ema_alpha: weight of the latest conversation in the moving average.
    """

    ema_alpha: float
    means: list[MeanDuration]
