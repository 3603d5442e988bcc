"""What operators see: keys, the configuration, usage, live sessions and updates. Times are in Unix seconds."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.wire.codec.types import JsonValue, Maybe, Wire

# Keys


class LimitLeft(Wire, kw_only=True):
    """A limit of a key: how much it is, how much is left, and after how many seconds all of it is available again."""

    limit: int
    remaining: int
    reset_s: float


class KeyLimits(Wire, kw_only=True):
    """The limits of a key that are counted by the minute; null for one that it does not have."""

    requests: LimitLeft | None
    tokens: LimitLeft | None


class ApiKey(Wire, kw_only=True):
    """
    A key, without the key itself.

    Attributes:
        prefix: its first characters, for people to tell keys apart.
        state: `live`, `expired` or `revoked`.
        last_used_at: to the minute; null if it was never used.
        streams: how many answers it may get at the same time; null for any number.
        record: which of its sessions are recorded; null for the server's own rule.
        profile: of the Responses API; null for the server's default.
        limits: what is left of them.
    """

    id: str
    prefix: str
    name: str
    tenant: str
    scopes: list[str]
    state: Literal["live", "expired", "revoked"]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    streams: int | None
    record: str | None
    profile: str | None
    limits: KeyLimits


class ApiKeyList(Wire, kw_only=True):
    """All keys, oldest first; `now` is the server's clock."""

    now: float
    keys: list[ApiKey]


class CreatedApiKey(ApiKey, kw_only=True):
    """A new key; `value` is the key itself, which can't be read again."""

    value: str


_Label = Annotated[str, Meta(max_length=256)]
_Limit = Annotated[int, Meta(ge=1, le=10**12)]


class CreateApiKeyRequest(Wire, kw_only=True):
    """
    A key to be made.

    Attributes:
        tenant: by default the caller's own.
        scopes: by default all but `admin`, as far as the caller has them.
        expires: `30m`, `12h`, `30d`, `8w` from now, or a date such as `2030-01-31`; by default never.
        confirm: makes a first key that lacks the scope `admin`, with which nobody can operate the server over HTTP.
    """

    name: _Label
    tenant: Maybe[_Label] = UNSET
    scopes: Maybe[Annotated[list[str], Meta(max_length=32)]] = UNSET
    expires: Maybe[Annotated[str, Meta(max_length=64)]] = UNSET
    requests_per_minute: Maybe[_Limit] = UNSET
    tokens_per_minute: Maybe[_Limit] = UNSET
    streams: Maybe[_Limit] = UNSET
    record: Maybe[Literal["never", "consent", "always"]] = UNSET
    profile: Maybe[Literal["openai", "open-responses", "eugpt"]] = UNSET
    confirm: Maybe[Literal["no_admin_key"]] = UNSET


class RevokeApiKeyRequest(Wire, kw_only=True):
    """`confirm` revokes the last key with the scope `admin` all the same."""

    confirm: Maybe[Literal["last_admin_key"]] = UNSET


# Configuration


class ConfigurationSetting(Wire, kw_only=True):
    """
    A setting.

    Attributes:
        key: such as `server.port`; a list of tables, such as `models`, is one setting.
        value: without the secrets in it. Files are named without their folders.
        origin: the file, variable or flag that set it, or `built-in`.
        default: null where there is none.
        secret: whether the secret that it names or holds is there; null for a setting without one.
        restart: whether a new value needs a restart of the server.
    """

    key: str
    value: JsonValue
    origin: str
    default: JsonValue
    secret: Literal["set", "unset"] | None
    restart: bool


# Usage


class UsageResult(Wire, kw_only=True):
    """
    What was used in one bucket by one of the groups asked for.

    Attributes:
        key_id: null unless it is grouped by, or for requests without a key; likewise the next two.
        model: null also for requests that were refused before they reached one.
        requests: answers that a model began, such as each response of a Realtime session.
        errors: those of them that failed.
        refused: requests that were answered with 429 or 503.
        input_cached_tokens: those of `input_tokens` that came from a cache.
        input_audio_s: seconds of sound that sessions and transcriptions took; `output_audio_s`: that they and the voice gave.
    """

    object: Literal["usage.result"] = "usage.result"
    key_id: str | None
    model: str | None
    protocol: str | None
    requests: int
    errors: int
    refused: int
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    input_audio_s: float
    output_audio_s: float


class UsageBucket(Wire, kw_only=True):
    """What was used from `start_time` to before `end_time`, in Unix seconds; empty where nothing was."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[UsageResult]


class UsagePage(Wire, kw_only=True):
    """Buckets in the order of their time; `next_page` is the `page` of the next ones, null after the last."""

    object: Literal["page"] = "page"
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


# Live sessions


class LiveSessionEntry(Wire, kw_only=True):
    """
    A Realtime or MiniCPM-o session that is under way.

    Attributes:
        id: the one that its client knows, and that of its recording.
        mode: `conversation` or `transcription`; of MiniCPM-o `chat`, `audio` or `video`.
        ends_at: when its longest duration is over.
        recorded: whether it is recorded.
    """

    id: str
    protocol: Literal["realtime", "minicpmo"]
    mode: str
    model: str
    tenant: str
    key_id: str | None
    started_at: float
    ends_at: float | None
    recorded: bool


class LiveSessionList(Wire, kw_only=True):
    """All live sessions; `now` is the server's clock."""

    now: float
    sessions: list[LiveSessionEntry]


class LiveSessionClosed(Wire, kw_only=True):
    """A session that is being closed."""

    id: str
    closed: Literal[True] = True


# Updates


class ModelHealthEntry(Wire, kw_only=True):
    """
    How a model does.

    Attributes:
        state: `ready`; `waiting` for a first worker; `degraded`, with some of its upstreams or workers out of order, or
            `failing`, with all of them.
        answers: in the last hour; likewise `errors`, those of them that failed.
        first_token_p50_s: of streams in the last 15 minutes, to 5 %; null without any. Likewise `first_token_p99_s`.
    """

    name: str
    engine: str
    state: Literal["ready", "waiting", "degraded", "failing"]
    answers: int
    errors: int
    first_token_p50_s: float | None
    first_token_p99_s: float | None


class ModelHealthList(Wire, kw_only=True):
    """All models; `now` is the server's clock."""

    now: float
    models: list[ModelHealthEntry]


class ServerState(Wire, kw_only=True):
    """
    The server in numbers, without anything of a tenant's.

    Attributes:
        status: `ready`, `draining` before its end, or `unavailable` while the store is away.
        processes: that are one server.
        requests: under way; `sessions`: Realtime and MiniCPM-o; `background`: responses made in the background.
        recordings: how many were stored since the start, or failed to be: when it changes, their list may have.
        queue_length: clients that wait; `serving`: those that have a worker.
        workers: by state.
        answers: in the last hour; likewise `errors` and `refusals`, requests that were answered with 429 or 503.
        first_token_p50_s: of streams in the last 15 minutes, to 5 %; null without any. Likewise `first_token_p99_s`.
    """

    status: Literal["ready", "draining", "unavailable"]
    version: str
    started_at: int
    processes: int
    warm_up: str
    requests: int
    connections: int
    sessions: int
    background: int
    recordings: int
    queue_length: int
    max_queue_size: int
    serving: int
    workers: dict[str, int]
    answers: int
    errors: int
    refusals: int
    first_token_p50_s: float | None
    first_token_p99_s: float | None


class AnswerEntry(Wire, kw_only=True):
    """
    A response of the Responses API that is under way, or one of the last that ended.

    Attributes:
        created_at: Unix seconds; `ended_at`: null while it is under way.
        first_token_s: from the request to the first event with output, of a stream.
    """

    id: str
    model: str
    status: str
    background: bool
    tenant: str
    key_id: str | None
    created_at: float
    ended_at: float | None
    first_token_s: float | None
    input_tokens: int | None
    output_tokens: int | None
