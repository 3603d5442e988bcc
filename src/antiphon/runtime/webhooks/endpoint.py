"""A webhook endpoint: which events it wants, and one attempt to send it one."""

import hashlib
import ipaddress
import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus

import msgspec
from msgspec import Struct

from antiphon.config.webhooks import EVENTS, InvalidSecret, WebhookEntry, parse_secrets
from antiphon.errors import ServerError
from antiphon.masking import mask_password
from antiphon.records import EndedResponse, WebhookDelivery
from antiphon.runtime.core import lazy
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.webhooks.schedule import AttemptOutcome
from antiphon.runtime.webhooks.signing import signed_headers
from antiphon.wire.http.webhooks import WebhookEvent, WebhookResponse

_MAX_ERROR_CHARACTERS = 300


class WebhookEndpoint(Struct, frozen=True):
    """
    An endpoint with its keys.

    Attributes:
        keys: sign what is sent to it; the newest first.
    """

    entry: WebhookEntry
    keys: tuple[bytes, ...]

    @property
    def name(self) -> str:
        """The name that deliveries in the store have it by."""
        return self.entry.name

    @property
    def url_hash(self) -> bytes:
        """Tells its URL from another one."""
        return hash_url(self.entry)

    def wants(self, response: EndedResponse) -> bool:
        """Whether it is to hear of a response."""
        entry = self.entry
        is_its_tenant = entry.tenant in (None, response.tenant)
        return event_type(response) in entry.events and is_its_tenant and entry.key in (None, response.key_id)

    async def attempt(self, delivery: WebhookDelivery) -> AttemptOutcome:
        """Send a delivery once; no failure raises an error."""
        networks = tuple(ipaddress.ip_network(network) for network in self.entry.networks)
        limits = lazy.FetchLimits(timeout_s=self.entry.timeout_s, allowed_networks=networks)
        headers = signed_headers(self.keys, delivery.id, int(time.time()), delivery.body)
        try:
            reply = await lazy.post(self.entry.url, delivery.body, headers, limits)
        except lazy.PostFailure as error:
            return AttemptOutcome(mask_password(str(error))[:_MAX_ERROR_CHARACTERS])
        if 200 <= reply.status < 300:
            return AttemptOutcome(None)
        # RFC 9110, 10.2.3: seconds, or a date, which is not read here.
        retry_after = reply.retry_after or ""
        return AttemptOutcome(
            f"it answered with status {reply.status}",
            is_gone=reply.status == HTTPStatus.GONE,
            retry_after_s=int(retry_after) if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 10 else 0,
        )


def hash_url(entry: WebhookEntry) -> bytes:
    """SHA-256 of an endpoint's URL."""
    return hashlib.sha256(entry.url.encode()).digest()


def build_endpoints(entries: Iterable[WebhookEntry], secrets: Mapping[str, str]) -> Sequence[WebhookEndpoint]:
    """
    The endpoints of a configuration.

    Args:
        secrets: values of environment variables.

    Raises:
        ServerError: a variable is not set, or its value is no secret.
    """
    return [WebhookEndpoint(entry, _keys(entry, secrets)) for entry in entries]


def _keys(entry: WebhookEntry, secrets: Mapping[str, str]) -> tuple[bytes, ...]:
    if entry.secret_env is None:
        return tuple(key for secret in entry.secret for key in parse_secrets(secret))
    if not (text := secrets.get(entry.secret_env)):
        raise ServerError(f"The secret of the webhook '{entry.name}' is to be in {entry.secret_env}, which is not set.")
    try:
        return parse_secrets(text)
    except InvalidSecret as error:
        raise ServerError(f"{entry.secret_env}, of the webhook '{entry.name}': {error}") from None


def event_type(response: EndedResponse) -> str:
    """The event of a response's end; none of `EVENTS` for a status that has none."""
    return f"response.{response.status}"


def new_deliveries(endpoints: Iterable[WebhookEndpoint], response: EndedResponse, now: float) -> Sequence[WebhookDelivery]:
    """One event, on its way to each of the endpoints that want it; due at once."""
    targets = [endpoint for endpoint in endpoints if endpoint.wants(response)]
    if not targets:
        return ()
    body = _encode_event(response, now)
    return [_new_delivery(endpoint, response, body, now) for endpoint in targets]


def new_test_delivery(endpoint: WebhookEndpoint, event: str, now: float) -> WebhookDelivery:
    """A delivery of an event about a response that does not exist."""
    assert event in EVENTS
    response = EndedResponse(id=new_id("resp"), tenant="", status=event.removeprefix("response."), key_id=None)
    return _new_delivery(endpoint, response, _encode_event(response, now), now)


def _encode_event(response: EndedResponse, now: float) -> bytes:
    event = WebhookEvent(id=new_id("evt"), created_at=int(now), type=event_type(response), data=WebhookResponse(id=response.id))
    return msgspec.json.encode(event)


def _new_delivery(endpoint: WebhookEndpoint, response: EndedResponse, body: bytes, now: float) -> WebhookDelivery:
    return WebhookDelivery(
        id=new_id("wh"),
        endpoint=endpoint.name,
        event=event_type(response),
        tenant=response.tenant,
        response_id=response.id,
        body=body,
        created_at=int(now),
        expires_at=int(now + 3600 * endpoint.entry.hours),
        due_at_ms=int(1000 * now),
    )
