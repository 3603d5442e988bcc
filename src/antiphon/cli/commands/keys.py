"""`antiphon keys`: create, list, revoke, and the keys of encrypted content."""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Literal, TypeVar

from cyclopts import App

from antiphon.cli.common import lazy, settings
from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter
from antiphon.cli.common.server import configured_client
from antiphon.cli.common.shell import Shell, UsageError, format_time
from antiphon.config.load import Config
from antiphon.config.settings import ProfileName
from antiphon.errors import UpstreamError, shorten
from antiphon.records import KeyRecord
from antiphon.runtime.access.key_fields import MAX_LABEL_CHARS, MAX_LIMIT, is_label, is_limit, key_fields, key_state, parse_expiry
from antiphon.runtime.access.keys import DEFAULT_SCOPES, SCOPES, make_key
from antiphon.runtime.core.home_lock import is_home_locked
from antiphon.stores.base import KeyStore

app = App(
    name="keys",
    help="""
Create, list and revoke API keys.

Try:
    antiphon keys create --name laptop
    antiphon keys list
""",
)

_OTHER_CONFIGURATION = "If your server has another configuration, name it with --config, or set the same ANTIPHON_HOME."

ResultT = TypeVar("ResultT")


@app.command
def create(
    *,
    name: str,
    tenant: str = "default",
    scopes: str | None = None,
    expires: str | None = None,
    limit_requests: int | None = None,
    limit_tokens: int | None = None,
    limit_streams: int | None = None,
    record: Literal["never", "consent", "always"] | None = None,
    profile: ProfileName | None = None,
    as_json: JsonFlag = False,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Create a key, and print it: it can't be shown again.

    Once there is a key, every request to the server needs one. A running
    server accepts a new key at once.

    The scopes are responses:write, responses:read, models:read, realtime,
    audio, sessions and admin.

    Try:
        antiphon keys create --name laptop
        antiphon keys create --name ci --expires 30d --limit-requests 60

    Args:
        name: a name to recognize it by.
        tenant: keys of one tenant reach the same responses and recordings; by default `default`.
        scopes: what it may do, separated by commas; by default everything but admin.
        expires: when it expires: 30m, 12h, 30d, 8w from now, or a date such as 2030-01-31.
        limit_requests: how many requests it may send in a minute.
        limit_tokens: how many tokens it may use in a minute, input and output together.
        limit_streams: how many answers it may get at the same time.
        record: record its sessions never, only those that ask for it (consent), or always; by default as the server does.
        profile: whose format the Responses API follows for it under /v1; by default the server's.
    """
    now = time.time()
    limits = {"requests_per_minute": limit_requests, "tokens_per_minute": limit_tokens, "streams": limit_streams}
    if not all(map(is_limit, limits.values())):
        raise UsageError(f"A limit must be 1 or more, and at most {MAX_LIMIT}; leave it out for none.")
    _check_label("--name", name)
    if tenant:  # the empty one is that of requests without a key
        _check_label("--tenant", tenant)
    granted_scopes = DEFAULT_SCOPES if scopes is None else [scope.strip() for scope in scopes.split(",") if scope.strip()]
    if not granted_scopes or set(granted_scopes) - SCOPES.keys():
        raise UsageError(f"'{scopes}' is no list of scopes; there are {', '.join(SCOPES)}.")
    expires_at = _parse_expiry(expires, datetime.fromtimestamp(now, UTC)) if expires is not None else None
    key, secret = make_key(
        name, now=now, tenant=tenant, scopes=granted_scopes, expires_at=expires_at, record=record, profile=profile, **limits
    )
    config = settings.load(shell, file).config
    _with_keys(config, lambda keys: keys.add(key))
    store = settings.store_location(config)
    if as_json:
        shell.say_json({"key": secret, **key_fields(key, now), "store": store})
    else:
        shell.say(secret)
        shell.note(f"{key.id} is created for tenant '{tenant}' in the store {store}. Keep the key: it can't be shown again.")
    if problem := _server_problem(shell, config, secret):
        shell.note(problem)


@app.command(name="list")
def list_(*, as_json: JsonFlag = False, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the keys, by their first characters.

    A running server writes LAST USED once a minute, and when it stops.

    Try:
        antiphon keys list
    """
    now = time.time()
    config = settings.load(shell, file).config
    keys = _with_keys(config, lambda keys: keys.all())
    if as_json:
        return shell.say_json([key_fields(key, now) for key in keys])
    if not keys:
        return shell.note(f"there are no keys in the store {settings.store_location(config)}; create one with `antiphon keys create`")
    rows = [
        (
            key.id,
            f"{key.prefix}...",
            key.name,
            key.tenant or "-",
            key_state(key, now),
            format_time(key.last_used_at),
            _format_permissions(key),
        )
        for key in keys
    ]
    return shell.say_rows([("ID", "KEY", "NAME", "TENANT", "STATE", "LAST USED (UTC)", "SCOPES AND LIMITS"), *rows])


@app.command(usage="Usage: antiphon keys revoke [OPTIONS] WHICH...")
def revoke(*which: str, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Revoke keys; it takes effect within seconds.

    Try:
        antiphon keys revoke laptop

    Args:
        which: ids, or names that only one key has.
    """
    if not which:
        raise UsageError("Name at least one key; `antiphon keys list` shows them.")
    now = time.time()

    async def work(keys: KeyStore) -> tuple[list[KeyRecord], bool]:
        former_keys = [key for key in await keys.all() if key.revoked_at is None]
        matches = [_find(id_or_name, former_keys) for id_or_name in which]
        for key in matches:
            await keys.revoke(key.id, int(now))
        return matches, any(key.is_live(now) for key in former_keys if key not in matches)

    config = settings.load(shell, file).config
    revoked_keys, is_any_left = _with_keys(config, work)
    for key in revoked_keys:
        shell.say(f"{key.id} ({key.name}) is revoked")
    if not is_any_left and config.server.require_keys is not False:
        shell.note(
            "no valid key is left, so the server refuses every request: create a key with `antiphon keys create`, or set "
            f"{settings.NO_KEYS_SETTING}"
        )


def _check_label(flag: str, label: str) -> None:
    if not is_label(label):
        raise UsageError(f"{flag} takes 1 to {MAX_LABEL_CHARS} characters on one line; got {shorten(label)!r}.")


@app.command
def rotate_encryption(*, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Make a new key for encrypted content.

    The server encrypts reasoning that clients keep with the newest of its
    keys, and reads what it encrypted with any of them. A running server
    uses the new key at once.

    Try:
        antiphon keys rotate-encryption
    """
    config = settings.load(shell, file).config
    variable = config.responses.encryption_keys_env
    if variable in config.secrets:
        raise UsageError(f"The keys for encrypted content are in {variable}: put a new one in front of them there.")
    count = lazy.encrypted_content.rotate_keys(config.home)
    shell.say("the first key is made" if count == 1 else f"the newest of {count} keys encrypts from now on, and all of them decrypt")


def _server_problem(shell: Shell, config: Config, secret: str) -> str | None:
    """Why no server that can be found takes a new key of the configured store; None if one does, or needs none."""
    client = configured_client(shell, config)
    address = client.base_url
    if not client.is_alive():
        if not config.has_shared_store and is_home_locked(config.home):  # a server listens elsewhere, as after `serve --port`
            return None
        return f"no server answers at {address}; the key is for one with this store. {_OTHER_CONFIGURATION}"
    if config.server.require_keys is False:
        return None
    # A server that needs no key yet takes any, so it is asked with a wrong one, too.
    if _is_accepted(client, secret) and not _is_accepted(client, f"{secret}-wrong"):
        return None
    return f"the server at {address} has another store, so it does not know the key. {_OTHER_CONFIGURATION}"


def _is_accepted(client: ApiClient, secret: str) -> bool:
    try:
        ApiClient(client.base_url, secret, is_probe=True, ca_file=client.ca_file).get("/v1/models")
    except UpstreamError as error:
        return error.status != HTTPStatus.UNAUTHORIZED  # any other refusal is not about the key
    return True


def _with_keys(config: Config, work: Callable[[KeyStore], Awaitable[ResultT]]) -> ResultT:
    """Run `work` with the keys of the configured store."""
    return settings.with_store(config, "Keys", lambda store: work(store.keys))


def _find(which: str, keys: Sequence[KeyRecord]) -> KeyRecord:
    matches = [key for key in keys if which in (key.id, key.name)]
    if not matches:
        raise UsageError(f"There is no key '{which}' to revoke; `antiphon keys list` shows them.")
    if len(matches) > 1:
        raise UsageError(f"More than one key has the name '{which}'; use an id: {', '.join(key.id for key in matches)}.")
    return matches[0]


def _parse_expiry(text: str, now: datetime) -> int:
    try:
        return parse_expiry(text, now)
    except ValueError as error:
        raise UsageError(f"'{text}' {error}.") from None


def _format_permissions(key: KeyRecord) -> str:
    """Its scopes, its limits, its rule for recordings, and its profile."""
    limits = {"requests/min": key.requests_per_minute, "tokens/min": key.tokens_per_minute, "streams": key.streams}
    parts = (
        "all but admin" if set(key.scopes) == set(DEFAULT_SCOPES) else ", ".join(key.scopes),
        ", ".join(f"{limit} {kind}" for kind, limit in limits.items() if limit is not None),
        f"record {key.record}" if key.record else "",
        f"profile {key.profile}" if key.profile else "",
    )
    return "; ".join(part for part in parts if part)
