"""
What the endpoints around queue and workers give, with the fields that MiniCPM-o's pages and clients read.

Times are in Unix seconds.
"""

from typing import Literal

from antiphon.engine_api.capabilities import Capabilities
from antiphon.wire.codec.types import Wire

WorkerStatus = Literal["idle", "busy", "draining", "quarantined", "offline"]


class QueueTicket(Wire, kw_only=True):
    """
    One who waits, or is served.

    Attributes:
        request_type: the kind of conversation, by the name that MiniCPM-o's pages have for it.
        position: 1 for who is next; null for one that is served.
        estimated_wait_s: null where that is not known.
        worker_id: with whom; null while it waits.
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
    """All tickets: those that wait, in their order, and those that are served; `now` is the server's clock."""

    now: float
    queue_length: int
    max_queue_size: int
    items: list[QueueTicket]
    running_tasks: list[QueueTicket]


class TicketCancelled(Wire, kw_only=True):
    """A ticket that waits no longer."""

    ticket_id: str
    cancelled: Literal[True] = True


class WorkerStatusEntry(Wire, kw_only=True):
    """
    A worker.

    Attributes:
        slots: places; null for as many as are asked for.
        taken: places that are had.
        failures: one after another.
        silent_s: since it was heard last; null for one that has not joined over a link. Likewise `version`, of antiphon there.
        abilities: what its engine can do.
        sessions: those that it has.
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


class WorkerList(Wire, kw_only=True):
    """All workers; `now` is the server's clock."""

    now: float
    total: int
    workers: list[WorkerStatusEntry]


class WorkerRemoved(Wire, kw_only=True):
    """A worker that gets nobody any more, and is forgotten."""

    worker_id: str
    removed: Literal[True] = True


class GatewayStatus(Wire, kw_only=True):
    """
    How it stands.

    Attributes:
        gateway_healthy: whether new work is taken.
        error_workers: those in quarantine.
        duplex_workers: busy ones that have a conversation in full duplex.
        loading_workers: always 0: a worker is there when it has loaded.
    """

    gateway_healthy: bool
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


class MeanDuration(Wire, kw_only=True):
    """How long a place is held by a kind of conversation, on average."""

    model: str
    kind: str
    request_type: str
    mean_s: float
    samples: int


class EtaConfig(Wire, kw_only=True):
    """
    What estimates are made from.

    Attributes:
        ema_alpha: what the latest conversation counts for, when there were some.
    """

    ema_alpha: float
    means: list[MeanDuration]
