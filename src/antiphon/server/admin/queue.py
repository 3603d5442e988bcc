"""
Queue and workers, at the paths that MiniCPM-o's pages and clients use.

They are for the operator. A ticket's own path is also open to its owner; other callers get a 404.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from msgspec import convert
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError, shorten
from antiphon.runtime.scheduling.base import TicketView, WorkerView
from antiphon.runtime.scheduling.eta import EMA_ALPHA
from antiphon.runtime.service import Service
from antiphon.runtime.statistics.recent import server_health
from antiphon.server.http.auth import GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import Operation
from antiphon.server.transport import logs
from antiphon.wire.codec.types import Wire, encode
from antiphon.wire.http import queue as wire

_REQUEST_TYPES = {"audio": "audio_duplex", "video": "omni_duplex"}
"""Conversation kinds whose name in MiniCPM-o's pages differs from ours."""


_TICKET_NOT_FOUND = {404: "There is no such ticket, or it is another client's, or it has ended."}
_WORKER_NOT_FOUND = {404: "There is no such worker."}

_STATUS = Operation("getStatus", "Queue", "Summarize the server's state", wire.GatewayStatus)
_QUEUE = Operation("getQueue", "Queue", "List the clients that wait, and those that are served", wire.QueueStatus)
_LIST_TICKETS = Operation("listTickets", "Queue", "The same as `GET /queue`", wire.QueueStatus)
_TICKET = Operation("getTicket", "Queue", "Retrieve a ticket", wire.QueueTicket, errors=_TICKET_NOT_FOUND)
_CANCEL = Operation(
    "cancelTicket",
    "Queue",
    "Cancel a ticket that waits",
    wire.TicketCancelled,
    errors=_TICKET_NOT_FOUND | {409: "The ticket already has a worker."},
    description="Its client gets `worker_busy`.",
)
_ETA = Operation("getEtaConfig", "Queue", "Retrieve what wait estimates are computed from", wire.EtaConfig)
_LIST_WORKERS = Operation("listWorkers", "Queue", "List the workers", wire.WorkerList)
_WORKER = Operation("getWorker", "Queue", "Retrieve a worker", wire.WorkerStatusEntry, errors=_WORKER_NOT_FOUND)
_DRAIN = Operation(
    "drainWorker",
    "Queue",
    "Assign no more clients to a worker",
    wire.WorkerStatusEntry,
    errors=_WORKER_NOT_FOUND,
    description="Conversations in progress go on.",
)
_RESUME = Operation(
    "resumeWorker",
    "Queue",
    "Assign clients to a drained worker again",
    wire.WorkerStatusEntry,
    errors=_WORKER_NOT_FOUND | {409: "The worker ends with its last session."},
    description="A worker that is not draining stays as it is.",
)
_REMOVE = Operation(
    "removeWorker",
    "Queue",
    "Remove a worker",
    wire.WorkerRemoved,
    errors=_WORKER_NOT_FOUND,
    description="Conversations in progress go on. The worker is back when it joins again, or, if it is configured, when the server "
    "restarts.",
)


def routes(service: Service) -> list[GuardedRoute]:
    """All routes of queue and workers."""
    endpoints = _QueueEndpoints(service)
    return [
        *guarded_routes(
            service,
            [
                ("GET", "/status", endpoints.status, "admin", _STATUS),
                ("GET", "/queue", endpoints.queue, "admin", _QUEUE),
                ("GET", "/api/queue", endpoints.queue, "admin", _LIST_TICKETS),
                ("GET", "/api/config/eta", endpoints.eta, "admin", _ETA),
                ("GET", "/workers", endpoints.workers, "admin", _LIST_WORKERS),
                ("GET", "/workers/{id}", endpoints.worker, "admin", _WORKER),
                ("POST", "/workers/{id}/drain", endpoints.drain, "admin", _DRAIN),
                ("POST", "/workers/{id}/resume", endpoints.resume, "admin", _RESUME),
                ("DELETE", "/workers/{id}", endpoints.remove, "admin", _REMOVE),
            ],
        ),
        _TicketRoute("/api/queue/{id}", endpoints.ticket, service=service, access="realtime", operation=_TICKET),
        _TicketRoute("/api/queue/{id}", endpoints.cancel, service=service, access="realtime", operation=_CANCEL, method="DELETE"),
    ]


class _TicketRoute(GuardedRoute):
    """A ticket: open to its owner, and to the operator, whose key may have only the scope `admin`."""

    def is_open_to(self, scopes: Sequence[str]) -> bool:
        return "admin" in scopes or super().is_open_to(scopes)


class _QueueEndpoints:
    """The endpoint functions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._coordinator = service.coordinator

    async def status(self, _request: Request) -> Response:
        """`GET /status`."""
        workers = self._coordinator.workers()
        serving = [ticket_entry(view) for view in self._coordinator.serving_tickets()]
        health = server_health([self._service.metrics.recent.counts()], time.time())
        # The kinds that have another name in MiniCPM-o's pages are those in full duplex.
        in_duplex = {ticket.worker_id for ticket in serving if ticket.kind in _REQUEST_TYPES}

        def count(state: wire.WorkerStatus) -> int:
            return sum(view.state == state for view in workers)

        return _json_response(
            wire.GatewayStatus(
                gateway_healthy=self._service.is_ready and not self._service.live_sessions.is_draining,
                warm_up=self._service.speech.warm_up_state,
                total_workers=len(workers),
                idle_workers=count("idle"),
                busy_workers=count("busy"),
                duplex_workers=sum(view.state == "busy" and view.worker.id in in_duplex for view in workers),
                draining_workers=count("draining"),
                error_workers=count("quarantined"),
                offline_workers=count("offline"),
                queue_length=self._coordinator.waiting_count,
                max_queue_size=self._service.config.queue.size,
                running_tasks=serving,
                answers=health.answers,
                errors=health.errors,
                refusals=health.refusals,
                first_token_p50_s=health.first_token_p50_s,
                first_token_p99_s=health.first_token_p99_s,
                upstreams=tuple(self._upstreams()),
            )
        )

    def _upstreams(self) -> list[wire.UpstreamStatus]:
        return [convert(view, wire.UpstreamStatus, from_attributes=True) for view in self._service.registry.upstreams()]

    async def queue(self, _request: Request) -> Response:
        """`GET /queue` and `GET /api/queue`."""
        tickets = [ticket_entry(view) for view in self._coordinator.tickets()]
        return _json_response(
            wire.QueueStatus(
                now=time.time(),
                queue_length=self._coordinator.waiting_count,
                max_queue_size=self._service.config.queue.size,
                items=[ticket for ticket in tickets if ticket.status == "queued"],
                running_tasks=[ticket for ticket in tickets if ticket.status == "serving"],
            )
        )

    async def ticket(self, request: Request) -> Response:
        """`GET /api/queue/{id}`."""
        return _json_response(ticket_entry(self._visible_ticket(request)))

    async def cancel(self, request: Request) -> Response:
        """`DELETE /api/queue/{id}`."""
        view = self._visible_ticket(request)
        if not self._coordinator.cancel(view.id):
            raise ClientError(f"Ticket '{view.id}' is already being served.", status=409, code="ticket_served")
        return _json_response(wire.TicketCancelled(ticket_id=view.id))

    async def eta(self, _request: Request) -> Response:
        """`GET /api/config/eta`."""
        means = [
            wire.MeanDuration(model=model, kind=kind, request_type=_REQUEST_TYPES.get(kind, kind), mean_s=mean_s, samples=count)
            for (model, kind), (mean_s, count) in self._coordinator.lease_durations.means().items()
        ]
        return _json_response(wire.EtaConfig(ema_alpha=EMA_ALPHA, means=means))

    async def workers(self, _request: Request) -> Response:
        """`GET /workers`."""
        sessions = self._tickets_by_worker()
        workers = [worker_entry(view, sessions[view.worker.id]) for view in self._coordinator.workers()]
        return _json_response(wire.WorkerList(now=time.time(), total=len(workers), workers=workers, upstreams=tuple(self._upstreams())))

    async def worker(self, request: Request) -> Response:
        """`GET /workers/{id}`."""
        return _json_response(self._worker_entry(request))

    async def drain(self, request: Request) -> Response:
        """`POST /workers/{id}/drain`."""
        return self._change_worker(request, "worker_draining", self._coordinator.drain, lambda: self._worker_entry(request))

    async def resume(self, request: Request) -> Response:
        """`POST /workers/{id}/resume`."""
        worker = self._find_worker(request).worker
        # It has reported that it exits after its last session, so it takes no new one.
        if worker.link is not None and worker.link.is_ending:
            raise ClientError(f"Worker '{worker.id}' ends with its last session.", status=409, code="worker_ending")
        return self._change_worker(request, "worker_resumed", self._coordinator.resume, lambda: self._worker_entry(request))

    async def remove(self, request: Request) -> Response:
        """`DELETE /workers/{id}`."""
        id = request.path_params["id"]
        return self._change_worker(request, "worker_removed", self._coordinator.remove_worker, lambda: wire.WorkerRemoved(worker_id=id))

    def _change_worker(self, request: Request, event: str, change: Callable[[str], bool], build_body: Callable[[], Wire]) -> Response:
        id = self._find_worker(request).worker.id
        # Whether anything changed doesn't matter: a worker that is draining, say, may be drained again.
        change(id)
        logs.get().info(event, worker=id)
        return _json_response(build_body())

    def _worker_entry(self, request: Request) -> wire.WorkerStatusEntry:
        view = self._find_worker(request)
        return worker_entry(view, self._tickets_by_worker()[view.worker.id])

    def _tickets_by_worker(self) -> Mapping[str, list[wire.QueueTicket]]:
        """Tickets being served, by their worker's id."""
        sessions: defaultdict[str, list[wire.QueueTicket]] = defaultdict(list)
        for view in self._coordinator.serving_tickets():
            sessions[view.worker_id or ""].append(ticket_entry(view))
        return sessions

    def _visible_ticket(self, request: Request) -> TicketView:
        """
        The ticket in the request's path.

        Raises:
            ClientError: there is no such ticket, or the caller may not see it.
        """
        id, caller = request.path_params["id"], request_caller(request.scope)
        view = self._coordinator.ticket(id)
        # Without keys everybody is the operator. Another's ticket is a 404, so that nobody learns which ids exist.
        may_see_all = caller.key is None or "admin" in caller.key.scopes
        if view is None or not (may_see_all or view.requirements.tenant == caller.tenant):
            raise ClientError(f"Ticket '{shorten(id)}' not found.", status=404, code="ticket_not_found")
        return view

    def _find_worker(self, request: Request) -> WorkerView:
        id = request.path_params["id"]
        for view in self._coordinator.workers():
            if view.worker.id == id:
                return view
        raise ClientError(f"Worker '{shorten(id)}' not found.", status=404, code="worker_not_found")


def _json_response(body: Wire) -> Response:
    return json_response(encode(body))


def ticket_entry(view: TicketView) -> wire.QueueTicket:
    """A ticket as clients see it."""
    requirements = view.requirements
    return wire.QueueTicket(
        ticket_id=view.id,
        status=view.state,
        model=requirements.model,
        kind=requirements.kind,
        request_type=_REQUEST_TYPES.get(requirements.kind, requirements.kind),
        tenant=requirements.tenant,
        key_id=requirements.key_id or None,
        enqueued_at=view.enqueued_at,
        position=view.position,
        estimated_wait_s=None if view.wait_s is None else round(view.wait_s, 1),
        worker_id=view.worker_id,
        started_at=view.assigned_at,
    )


def worker_entry(view: WorkerView, sessions: list[wire.QueueTicket]) -> wire.WorkerStatusEntry:
    """A worker as clients see it, with the tickets that it serves."""
    worker = view.worker
    return wire.WorkerStatusEntry(
        worker_id=worker.id,
        model=worker.model,
        address=worker.address,
        status=view.state,
        kinds=list(worker.kinds),
        slots=worker.slots,
        taken=view.lease_count,
        total_requests=view.served_count,
        failures=view.failure_count,
        joined_at=view.joined_at,
        silent_s=None if view.silent_s is None else round(view.silent_s, 1),
        version=worker.version,
        abilities=worker.engine.capabilities,
        sessions=sessions,
    )
