"""
The contract of a coordinator: who gets one of the few places that there are with a model, and who waits.

A place is had for as long as a conversation lasts. `antiphon.runtime.scheduling.engine` makes an engine of it, so that every protocol
waits in the same way; what decides is `antiphon.runtime.scheduling.pool`.
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

POOLED = frozenset({"omni", "worker"})
"""Engines of which there are few: whoever wants one waits, whatever protocol they speak."""

OnQueueUpdate = Callable[[events.QueueUpdate], None]
"""Takes how it stands with a ticket: once when it has to wait, whenever that changes, and every few seconds. Synchronous, on the loop."""


class Requirements(Struct, frozen=True, kw_only=True):
    """
    What a ticket asks for.

    Attributes:
        model: as configured: of a family its own name, such as `mock-*`.
    """

    model: str
    kind: ConversationKind
    tenant: str = ""
    key_id: str = ""


class WorkerLink(Protocol):
    """What an operator has of a worker that joined."""

    @property
    def silent_s(self) -> float:
        """For how long nothing has been heard of it."""

    @property
    def is_ending(self) -> bool:
        """Whether it goes of its own accord when it has nobody."""

    def drain(self) -> None:
        """Tell it that it gets nobody more."""

    def resume(self) -> None:
        """Tell it that it gets somebody again."""

    def dismiss(self) -> None:
        """Tell it that it is to go when it has nobody."""


class Worker(Struct, frozen=True, kw_only=True, eq=False):
    """
    What has places with a model.

    Attributes:
        id: unique among all workers.
        model: as configured.
        engine: opened once for every place that is taken; leaving it returns when the place may be given to the next.
        kinds: of conversations that it takes.
        slots: places; None for as many as are asked for.
        address: where it is, for the operator; empty for one in this process.
        link: to one that joined; None for any other. Likewise `version`, of antiphon there.
        is_draining: whether it gets nobody from the start.
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
    """A place that is had."""

    @property
    def ticket_id(self) -> str:
        """By which whoever has it waited."""

    @property
    def worker(self) -> Worker:
        """With whom."""

    def mark_failed(self) -> None:
        """The worker did not do what it should; one that does so again and again gets nobody for a while."""


class TicketView(Struct, frozen=True, kw_only=True):
    """A ticket, as an operator sees it; times are Unix seconds."""

    id: str
    requirements: Requirements
    state: Literal["queued", "serving"]
    enqueued_at: float
    position: int | None = None
    wait_s: float | None = None
    worker_id: str | None = None
    assigned_at: float | None = None


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker, as an operator sees it; times are Unix seconds. `silent_s` is None for one that has no link."""

    worker: Worker
    state: WorkerState
    lease_count: int
    served_count: int = 0
    failure_count: int = 0
    joined_at: float = 0
    silent_s: float | None = None


class Coordinator(Protocol):
    """Gives out places."""

    def lease(
        self, requirements: Requirements, on_queue_update: OnQueueUpdate, retry_of: str | None = None
    ) -> AbstractAsyncContextManager[WorkerLease]:
        """
        A place. Entered when there is one, which may take long; whoever stops waiting (by cancelling) has no ticket any more at once.

        Args:
            again: the ticket of a place that came to nothing; whoever had it waits where it would be now.

        Raises:
            ApiError: on entering: `queue_full`, `worker_busy` (no worker there is could ever do it), or `shutdown`.
        """

    def add_worker(self, worker: Worker) -> None:
        """A worker is there; one that has left may come back under its id."""

    def remove_worker(self, worker_id: str) -> bool:
        """A worker is gone, or is to go; whoever has a place with it learns from its engine what becomes of it. Whether it was there."""

    def drain(self, worker_id: str) -> bool:
        """Give no more places with a worker, and tell it so; whether there is such a one."""

    def resume(self, worker_id: str) -> bool:
        """Give places again with a worker that was drained, and tell it so; whether there is such a one."""

    def cancel(self, ticket_id: str) -> bool:
        """Have a ticket wait no longer: whoever waits gets `worker_busy`; whether there is such a one."""

    @property
    def waiting_count(self) -> int:
        """How many wait."""

    def ticket(self, ticket_id: str) -> TicketView | None:
        """One ticket; None where there is no such, or it has ended."""

    def tickets(self) -> Sequence[TicketView]:
        """All tickets: those that wait in their order, then those served."""

    def serving_tickets(self) -> Sequence[TicketView]:
        """Those who have a place."""

    def workers(self) -> Sequence[WorkerView]:
        """All workers."""

    def first_worker(self, model: str) -> Worker | None:
        """The worker of a model that has been there for longest; None where there is none."""

    def capabilities(self, model: str) -> Capabilities | None:
        """What the workers of a model can do, as the first of them says; None where there is none."""
