"""`antiphon webhooks`: list, test, deliveries, resend, enable, secret."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cyclopts import App
from msgspec.structs import asdict

from antiphon.cli.common import settings
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter
from antiphon.cli.common.shell import UsageError, format_time
from antiphon.config.load import Config
from antiphon.config.webhooks import EventName, WebhookEntry
from antiphon.errors import ServerError, is_or_are, quote_list
from antiphon.masking import mask_password
from antiphon.records import DeliveryStatus, WebhookDelivery
from antiphon.runtime.webhooks.endpoint import build_endpoints, hash_url, new_test_delivery
from antiphon.runtime.webhooks.signing import new_secret
from antiphon.stores.webhooks import WebhookStore

app = App(
    name="webhooks",
    help="""
See and test the endpoints that get events of background responses.

They are the [[webhooks]] of the configuration.

Try:
    antiphon webhooks list
    antiphon webhooks test billing
    antiphon webhooks deliveries --status failed
""",
)

_MAX_LIMIT = 1000

ResultT = TypeVar("ResultT")


@app.command(name="list")
def list_(*, as_json: JsonFlag = False, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the endpoints, whether they are disabled, and how many deliveries wait.

    Try:
        antiphon webhooks list
    """
    config = settings.load(shell, file).config
    disabled_times: dict[str, int] = {}
    pending_counts: dict[str, int] = {}
    if config.webhooks and config.database_url is not None:
        hashes = {entry.name: hash_url(entry) for entry in config.webhooks}

        async def work(webhooks: WebhookStore) -> None:
            disabled_endpoints = await webhooks.list_disabled()
            # An endpoint that has another URL by now is enabled: it was the old one that answered 410 Gone.
            disabled_times.update({each.name: each.disabled_at for each in disabled_endpoints if hashes.get(each.name) == each.url_hash})
            pending_counts.update(await webhooks.count_pending())

        _with_webhooks(config, work)
    if as_json:
        return shell.say_json(
            [
                {
                    "name": entry.name,
                    "url": mask_password(entry.url),
                    "events": entry.events,
                    "tenant": entry.tenant,
                    "key": entry.key,
                    "disabled_at": disabled_times.get(entry.name),
                    "pending": pending_counts.get(entry.name, 0),
                }
                for entry in config.webhooks
            ]
        )
    if not config.webhooks:
        return shell.note("no webhooks are configured; add a [[webhooks]] table to the configuration")
    rows = [
        (
            entry.name,
            "disabled" if entry.name in disabled_times else "enabled",
            str(pending_counts.get(entry.name, 0)),
            mask_password(entry.url),
            ", ".join(entry.events),
        )
        for entry in config.webhooks
    ]
    return shell.say_rows([("NAME", "STATE", "PENDING", "URL", "EVENTS"), *rows])


@app.command
def test(name: str | None = None, /, *, event: EventName = "response.completed", file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Send an event to an endpoint now, from this machine, and say how it answers.

    The event is about a response that does not exist. It is signed as any
    other; it is sent once, and is not listed.

    Try:
        antiphon webhooks test
        antiphon webhooks test billing --event response.failed

    Args:
        name: the endpoint; not needed where there is only one.
        event: the type of the event.
    """
    config = settings.load(shell, file).config
    entry = _find(config, name)
    [endpoint] = build_endpoints([entry], config.secrets)
    delivery = new_test_delivery(endpoint, event, time.time())
    begun_at = time.perf_counter()
    outcome = asyncio.run(endpoint.attempt(delivery))
    if outcome.error is not None:
        raise ServerError(f"The webhook '{entry.name}' did not take the event: {outcome.error}.")
    shell.say(f"'{entry.name}' took {event} in {1000 * (time.perf_counter() - begun_at):.0f} ms")


@app.command
def deliveries(
    name: str | None = None,
    /,
    *,
    status: DeliveryStatus | None = None,
    limit: int = 20,
    as_json: JsonFlag = False,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    List deliveries, the newest first; they are listed for three days after their end.

    NEXT is when a pending one is tried again.

    Try:
        antiphon webhooks deliveries
        antiphon webhooks deliveries billing --status failed

    Args:
        name: the endpoint; all if it is not given.
        status: only those that are pending, delivered or failed.
        limit: the most to list.
    """
    if not 1 <= limit <= _MAX_LIMIT:
        raise UsageError(f"--limit takes a number from 1 to {_MAX_LIMIT}.")
    config = settings.load(shell, file).config
    latest = _with_webhooks(config, lambda webhooks: webhooks.latest(name, status, limit))
    if as_json:
        return shell.say_json([_to_dict(delivery) for delivery in latest])
    if not latest:
        return shell.note("there are no such deliveries")
    rows = [
        (
            each.id,
            each.endpoint,
            each.event,
            each.response_id,
            each.status,
            str(each.attempts),
            format_time(each.created_at),
            format_time(each.due_at_ms / 1000) if each.status == "pending" else "-",
            each.error or "-",
        )
        for each in latest
    ]
    header = ("ID", "ENDPOINT", "EVENT", "RESPONSE", "STATUS", "ATTEMPTS", "CREATED (UTC)", "NEXT (UTC)", "LATEST ERROR")
    return shell.say_rows([header, *rows])


@app.command(usage="Usage: antiphon webhooks resend [OPTIONS] DELIVERIES...")
def resend(*deliveries: str, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Send deliveries again that have ended, delivered or not, with the same id.

    A running server sends them within seconds.

    Try:
        antiphon webhooks resend wh_68af0c1d2e3f

    Args:
        deliveries: their ids.
    """
    if not deliveries:
        raise UsageError("Name at least one delivery; `antiphon webhooks deliveries` lists them.")
    config = settings.load(shell, file).config
    hours = max((entry.hours for entry in config.webhooks), default=0)
    now = time.time()

    async def work(webhooks: WebhookStore) -> list[str]:
        return [id for id in deliveries if not await webhooks.resend(id, int(1000 * now), int(now + 3600 * hours))]

    if unknown_ids := _with_webhooks(config, work):
        raise UsageError(f"There is no delivery {quote_list(unknown_ids)} that has ended; `antiphon webhooks deliveries` lists them.")
    shell.note("it will be sent again" if len(deliveries) == 1 else "they will be sent again")


@app.command
def enable(name: str, /, *, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Send events again to an endpoint that has answered 410 Gone.

    What was not delivered stays so; `resend` sends it.

    Try:
        antiphon webhooks enable billing

    Args:
        name: the endpoint.
    """
    config = settings.load(shell, file).config
    entry = _find(config, name)
    is_enabled_now = _with_webhooks(config, lambda webhooks: webhooks.enable(entry.name))
    shell.note(f"'{entry.name}' is enabled" if is_enabled_now else f"'{entry.name}' was not disabled")


@app.command
def secret(*, shell: ShellParameter) -> None:
    """
    Make a new random secret, and print it.

    To change a secret, put the new one in front of the old one, restart the
    server, give the new one to the receiver, and then remove the old one.

    Try:
        antiphon webhooks secret
    """
    shell.say(new_secret())


def _find(config: Config, name: str | None) -> WebhookEntry:
    names = [entry.name for entry in config.webhooks]
    if not names:
        raise UsageError("No webhooks are configured; add a [[webhooks]] table to the configuration.")
    if name is None and len(names) > 1:
        raise UsageError(f"Name one of the webhooks; there {is_or_are(names)}.")
    for entry in config.webhooks:
        if name in (None, entry.name):
            return entry
    raise UsageError(f"There is no webhook '{name}'; there {is_or_are(names)}.")


def _with_webhooks(config: Config, work: Callable[[WebhookStore], Awaitable[ResultT]]) -> ResultT:
    """Run `work` with the deliveries of the configured store."""
    return settings.with_store(config, "Deliveries of webhooks", lambda store: work(store.webhooks))


def _to_dict(delivery: WebhookDelivery) -> dict[str, object]:
    """A delivery with its event as text."""
    return asdict(delivery) | {"body": delivery.body.decode()}
