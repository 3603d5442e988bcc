"""
The contract of a coordinator, which leases a model's limited workers to conversations.

A lease lasts as long as its conversation. `antiphon.runtime.scheduling.engine` makes an engine of it, so that every
protocol waits in the same way; `antiphon.runtime.scheduling.pool` decides who is next.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.engine_api import events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import Engine
from antiphon.engine_api.options import ConversationKind
from antiphon.runtime.core.metrics import WorkerState as WorkerState

POOLED_ENGINES = frozenset({"omni", "worker"})
"""Engines with a limited number of workers: conversations of every protocol wait for one."""

OnQueueUpdate = Callable[[events.QueueUpdate], None]
"""
Called on the event loop when a ticket has to wait, whenever its position changes, and every few seconds; must not
block.
"""


class Requirements(Struct, frozen=True, kw_only=True):
    """
    What a ticket needs from a worker, and whose request it is.

    Attributes:
        model: as configured; for a family its own name, such as `mock-*`.
    """

    model: str
    kind: ConversationKind
    tenant: str = ""
    key_id: str = ""


class WorkerLink(Protocol):
    """The operator's side of the link to a worker that joined."""

    @property
    def silent_s(self) -> float:
        """Seconds since the worker was last heard from."""

    @property
    def is_ending(self) -> bool:
        """Whether the worker will leave by itself when it has no conversations."""

    def drain(self) -> None:
        """Tell the worker that it gets no more conversations."""

    def resume(self) -> None:
        """Tell the worker that it gets conversations again."""

    def dismiss(self) -> None:
        """Tell the worker to leave when it has no conversations."""


class Worker(Struct, frozen=True, kw_only=True, eq=False):
    """
    An engine that answers for a model, a limited number of conversations at a time.

    Attributes:
        id: unique among all workers.
        model: as configured.
        engine: `open` is entered once per lease, and left when the lease may go to the next ticket.
        kinds: of conversations that it takes.
        slots: conversations at a time; None for no limit.
        address: where it is, for the operator; empty in this process.
        link: to a worker that joined; None for any other.
        version: of antiphon at a worker that joined; None for any other.
        is_draining: whether it gets no conversations from the start.
    """

    id: str
    model: str
    engine: Engine
    kinds: tuple[ConversationKind, ...] = ("responses", "realtime", "chat", "audio", "video")
    slots: int | None = 1
    address: str = ""
    link: WorkerLink | None = None
    version: str | None = None
    is_draining: bool = False


class WorkerLease(Protocol):
    """A worker's slot, held by a ticket."""

    @property
    def ticket_id(self) -> str:
        """The id of the ticket that holds it."""

    @property
    def worker(self) -> Worker:
        """The worker that has the slot."""

    def mark_failed(self) -> None:
        """Count a failure of the worker; after several in a row it gets no tickets for a while."""


class TicketView(Struct, frozen=True, kw_only=True):
    """A ticket as shown to operators; times are Unix seconds."""

    id: str
    requirements: Requirements
    state: Literal["queued", "serving"]
    enqueued_at: float
    position: int | None = None
    wait_s: float | None = None
    worker_id: str | None = None
    assigned_at: float | None = None


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker as shown to operators; times are Unix seconds. `silent_s` is None without a link."""

    worker: Worker
    state: WorkerState
    lease_count: int
    served_count: int = 0
    failure_count: int = 0
    joined_at: float = 0
    silent_s: float | None = None


class Coordinator(Protocol):
    """Leases workers."""

    def lease(
        self, requirements: Requirements, on_queue_update: OnQueueUpdate, retry_of: str | None = None
    ) -> AbstractAsyncContextManager[WorkerLease]:
        """
        A lease. Entering waits until there is one, which may take long; cancelling that removes the ticket at once.

        Args:
            retry_of: the ticket of a lease whose worker failed; it keeps its rank in the queue.

        Raises:
            ApiError: on entering: `queue_full`, `worker_busy` (no worker serves this at all), or `shutdown`.
        """

    def add_worker(self, worker: Worker) -> None:
        """Give tickets to a worker from now on; it replaces one with the same id."""

    def remove_worker(self, worker_id: str) -> bool:
        """Forget a worker; conversations with it go on, or fail as its engine says. Returns whether it was known."""

    def drain(self, worker_id: str) -> bool:
        """Assign no more conversations to a worker, and notify it; returns whether it is known."""

    def resume(self, worker_id: str) -> bool:
        """Give tickets to a drained worker again, and notify it; returns whether it is known."""

    def cancel(self, ticket_id: str) -> bool:
        """Fail a waiting ticket with `worker_busy`; returns whether it waited."""

    @property
    def waiting_count(self) -> int:
        """How many tickets wait."""

    def ticket(self, ticket_id: str) -> TicketView | None:
        """One ticket; None if it is unknown or has ended."""

    def tickets(self) -> Sequence[TicketView]:
        """All tickets: the waiting ones in their order, model by model, then those being served."""

    def serving_tickets(self) -> Sequence[TicketView]:
        """Tickets that have a worker."""

    def workers(self) -> Sequence[WorkerView]:
        """All workers, in the order in which they were added."""

    def first_worker(self, model: str) -> Worker | None:
        """The model's worker that was added first; None if there is none."""

    def capabilities(self, model: str) -> Capabilities | None:
        """The capabilities of the model's first worker; None if there is none."""
