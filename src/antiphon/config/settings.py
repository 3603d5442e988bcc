"""
The settings by section, as `antiphon.config.load` reads them.

`docs/reference/configuration.md` has a heading for every setting.
"""

import ipaddress
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, field_validator

from antiphon.errors import quote_list

_PORTS = re.compile(r"(\d{4,5})-(\d{4,5})")

_PRIORITY = re.compile(r"[^=\s]+=-?\d+(\.\d+)?")

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def _split_commas(names: Any) -> Any:
    """A list of names, or names separated by commas as in environment variables."""
    return [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else names


def check_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    """
    Check that these are networks, and return them unchanged.

    Raises:
        ValueError: one of them is no network.
    """
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise ValueError(f"expected networks such as '10.1.0.0/16'; got '{network}'") from None
    return networks


_Names = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]


class ServerSettings(BaseModel, frozen=True, extra="forbid"):
    """Where the server listens, who may use it, and how long it waits for clients."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8642, ge=0, le=65535, description="TCP port to listen on; 0 takes any free one.")
    tls: Literal["off", "auto"] = Field(
        default="off", description="`auto`: HTTPS only, with certificates of an authority that the server makes for itself."
    )
    require_keys: bool | None = Field(
        default=None, description="Whether every request needs an API key; unset: once a key has been created."
    )
    allowed_hosts: _Names = Field(
        default=(), description="Host names that clients may use for the server, besides `localhost` and `server.host`."
    )
    allowed_origins: _Names = Field(default=(), description="Web origins whose pages may use the server.")
    console: bool = Field(default=True, description="Whether browsers get the page.")
    processes: int = Field(default=1, ge=1, le=256, description="The number of server processes.")
    start_wait_s: float = Field(default=30, ge=0, description="Seconds that requests wait which come while the server is starting.")
    retry_start: bool | None = Field(
        default=None, description="Whether a server that can't fetch weights stays and tries again; unset: if it belongs to a terminal."
    )
    drain_s: float = Field(default=30, ge=0, description="Seconds that responses in progress have to finish when the server stops.")
    connections: int = Field(default=8192, ge=1, description="The most open connections.")
    connections_per_address: int = Field(default=0, ge=0, description="The most connections from one address; 0 for no limit.")
    bodies_mib: int = Field(default=512, ge=32, description="The most MiB of bodies of unfinished requests.")
    bodies_per_key_mib: int = Field(default=128, ge=32, description="The same for one key; without keys, for one address.")
    head_timeout_s: float = Field(default=10, gt=0, description="Seconds within which a request's head must arrive.")
    body_timeout_s: float = Field(default=30, gt=0, description="Seconds within which more of a request's body must arrive.")
    keep_alive_s: float = Field(default=75, gt=0, description="Seconds that an idle connection is kept open.")
    slow_reader_s: float = Field(default=30, gt=0, description="Seconds that a client may take to read what was sent.")
    heartbeat_s: float = Field(default=15, gt=0, description="Seconds of silence after which a stream gets a comment.")
    upstream_header: bool = Field(default=False, description="Name in a header the upstream that answered, of a model with several.")
    fetch_networks: _Names = Field(default=(), description="Networks that URLs in requests may lead to, besides the public internet.")

    @property
    def scheme(self) -> Literal["http", "https"]:
        """The scheme of the server's addresses."""
        return "http" if self.tls == "off" else "https"

    @field_validator("allowed_origins")
    @classmethod
    def _validate_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        invalid = [origin for origin in origins if origin != "*" and not _ORIGIN.fullmatch(origin)]
        if invalid:
            raise ValueError(f"expected origins such as 'https://chat.example.com', without a path, or '*'; got {quote_list(invalid)}")
        return origins

    _validate_networks = field_validator("fetch_networks")(check_networks)


ProfileName = Literal["openai", "open-responses", "eugpt"]
"""The profiles of the Responses API."""

_FORMER_PROFILES = {"openresponses": "open-responses"}


class ResponsesSettings(BaseModel, frozen=True, extra="forbid"):
    """The Responses API."""

    profile: ProfileName = Field(
        default="openai", description="Whose format to follow under /v1, for keys that have no profile of their own."
    )
    obfuscation: bool = Field(default=True, description="Pad stream events, so that their sizes don't reveal the text.")
    unavailable_tools: Literal["carry", "refuse"] = Field(
        default="carry",
        description="What to do with tools that an engine doesn't support: list them but don't offer them to it, or refuse.",
    )
    websocket_minutes: float = Field(default=60, gt=0, description="Minutes after which a WebSocket of the Responses API ends.")
    encryption_keys_env: str = Field(
        default="ANTIPHON_ENCRYPTION_KEYS",
        min_length=1,
        description="The environment variable with keys for encrypted content, the newest first; unset: a file in the home folder.",
    )

    @field_validator("profile", mode="before")
    @classmethod
    def _explain_former_profile(cls, name: object) -> object:
        if name in _FORMER_PROFILES:
            raise ValueError(f"the profile '{name}' is called '{_FORMER_PROFILES[name]}' now")
        return name


class BackgroundSettings(BaseModel, frozen=True, extra="forbid"):
    """Background responses, and how long their events are stored."""

    running: int = Field(default=256, ge=1, description="The most background responses that a process makes at once.")
    waiting: int = Field(default=1000, ge=0, description="The most that wait in a process.")
    per_key: int = Field(default=0, ge=0, description="The most with the same key that a process makes or that wait; 0 for no limit.")
    restart_queued: bool = Field(default=True, description="Whether a response that waits is taken over when its server stops or dies.")
    events_hours: float = Field(default=24, ge=0, description="Hours after the end of a response when its events are deleted; 0: never.")
    events_gb: float = Field(default=1, ge=0, description="Gigabytes of events after which the oldest are deleted; 0: never.")


class CallsSettings(BaseModel, frozen=True, extra="forbid"):
    """The addresses of WebRTC calls."""

    addresses: _Names = Field(default=(), description="Addresses to announce to callers, if they differ from those the server listens on.")
    ports: str | None = Field(default=None, description="UDP ports to use, such as `50000-50099`; unset: any free ones.")

    @property
    def port_range(self) -> range:
        """The ports; empty for any port."""
        if self.ports is None:
            return range(0)
        first, _, last = self.ports.partition("-")
        return range(int(first), int(last) + 1)

    @field_validator("addresses")
    @classmethod
    def _validate_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            try:
                ipaddress.ip_address(address)
            except ValueError:
                raise ValueError(f"expected addresses such as '203.0.113.7'; got '{address}'") from None
        return addresses

    @field_validator("ports")
    @classmethod
    def _validate_ports(cls, ports: str | None) -> str | None:
        if ports is not None and not _is_port_range(ports):
            raise ValueError(f"expected two ports such as '50000-50099', the lower one first; got '{ports}'")
        return ports


def _is_port_range(ports: str) -> bool:
    match = _PORTS.fullmatch(ports)
    return match is not None and 1024 <= int(match[1]) <= int(match[2]) <= 65535


class RealtimeSettings(BaseModel, frozen=True, extra="forbid"):
    """The Realtime API, and its limits."""

    dialect: Literal["auto", "ga", "beta"] = Field(
        default="auto", description="The dialect to speak; `auto`: the one that the client requests."
    )
    auth_failure: Literal["http", "event"] = Field(
        default="http", description="How to refuse a client: with an HTTP status instead of a WebSocket, or with an event on the WebSocket."
    )
    sessions: int = Field(default=2048, ge=1, description="The most sessions open at once.")
    session_minutes: float = Field(default=60, gt=0, description="Minutes after which a session ends.")
    instructions: str | None = Field(
        default=None,
        description="Instructions for sessions that have none; unset: to answer as one speaks, if the voice is ours.",
    )
    transcription_model: str | None = Field(default=None, min_length=1, description="The model of transcription sessions.")


VAD_MODEL, TURN_MODEL = "silero-vad", "smart-turn-v3.2"
"""The models that detect speech, and the end of a turn."""


class SpeechSettings(BaseModel, frozen=True, extra="forbid"):
    """Transcription and speech synthesis for models that only read and write text."""

    enabled: bool | None = Field(
        default=None, description="Whether text models listen and speak; unset: if everything for it is installed."
    )
    warm_up: bool = Field(default=True, description="Load the speech models after the start, not for the first conversation.")
    speculation: bool = Field(default=True, description="Start the response before it is certain that the turn has ended.")
    stt: str = Field(default="moonshine-tiny-en", min_length=1, description="The model that transcribes.")
    stt_url: str | None = Field(default=None, description="URL of a transcription server, such as `http://127.0.0.1:8000/v1`.")
    stt_key_env: str | None = Field(default=None, description="The environment variable with that server's key.")
    stt_languages: _Names = Field(default=(), description="Languages that the transcription server understands, as codes; empty for any.")
    voice: str = Field(default="piper-en-us-joe-medium", min_length=1, description="The model that speaks.")
    voice_url: str | None = Field(default=None, description="URL of a text-to-speech server, such as `http://127.0.0.1:8880/v1`.")
    voice_key_env: str | None = Field(default=None, description="The environment variable with that server's key.")
    voices: _Names = Field(default=(), description="Voices of the text-to-speech server.")
    voice_folders: _Names = Field(default=(), description="Folders with more Piper voices.")
    voice_aliases: _Names = Field(default=(), description="Other names for voices, such as `nova=en_US-joe-medium`.")

    @field_validator("voice_aliases")
    @classmethod
    def _validate_voice_aliases(cls, aliases: tuple[str, ...]) -> tuple[str, ...]:
        if invalid := [alias for alias in aliases if alias.count("=") != 1]:
            raise ValueError(f"expected pairs such as 'nova=en_US-joe-medium'; got {quote_list(invalid)}")
        return aliases

    @property
    def voice_by_alias(self) -> Mapping[str, str]:
        """Voices by their aliases."""
        return dict(alias.split("=") for alias in self.voice_aliases)

    @property
    def catalogue_models(self) -> tuple[str, ...]:
        """The models of the catalogue that these settings need."""
        parts = ((self.stt, self.stt_url), (self.voice, self.voice_url))
        return (VAD_MODEL, TURN_MODEL, *(model for model, url in parts if url is None))


class StoreSettings(BaseModel, frozen=True, extra="forbid"):
    """Where responses are stored."""

    url: str = Field(default="sqlite", min_length=1, description="`sqlite` for a file in the home folder, `memory`, or an SQLAlchemy URL.")
    timeout_s: float = Field(default=10, gt=0, description="Seconds that the database may take for a statement or a new connection.")


class LoggingSettings(BaseModel, frozen=True, extra="forbid"):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The lowest level to log.")
    format: Literal["auto", "console", "json"] = Field(default="auto", description="`auto`: `console` on a terminal, else `json`.")
    content: bool = Field(default=False, description="Log the content of requests and responses, for debugging.")


class MinicpmoSettings(BaseModel, frozen=True, extra="forbid"):
    """The MiniCPM-o protocol, and its limits."""

    model: str | None = Field(default=None, min_length=1, description="The model of sessions that name none; unset: the first.")
    instructions: str = Field(default="You are a helpful assistant.", description="Instructions for sessions that have none.")
    video_s: float = Field(default=300, gt=0, description="Seconds after which a video session ends.")
    audio_s: float = Field(default=600, gt=0, description="Seconds after which an audio session ends.")
    chat_s: float = Field(default=3600, gt=0, description="Seconds after which a chat session ends.")
    warning_s: float = Field(default=30, ge=0, description="Seconds before its end when a session starts to report how many are left.")
    init_s: float = Field(default=30, gt=0, description="Seconds within which a client must start its session once it has left the queue.")
    idle_s: float = Field(default=60, gt=0, description="Seconds that a session may be without audio or video.")
    chat_idle_s: float = Field(default=300, gt=0, description="Seconds that a chat session may be without a question.")
    resume_s: float = Field(default=20, ge=0, description="Seconds that a session waits for a client that lost its network; 0: not at all.")
    presets: str | None = Field(default=None, min_length=1, description="Folder of presets and voices; unset: in the home folder.")


class QueueSettings(BaseModel, frozen=True, extra="forbid"):
    """The queue for models whose workers are all busy."""

    size: int = Field(default=1000, ge=0, description="The most waiting clients.")
    waiting_per_key: int = Field(default=0, ge=0, description="The most waiting clients with the same key; 0 for no limit.")
    serving_per_key: int = Field(default=0, ge=0, description="The most clients with the same key that are served at once; 0 for no limit.")
    priorities: _Names = Field(default=(), description="Priorities by kind or key, such as `chat=1,key_68af=2`; higher numbers go first.")
    update_s: float = Field(default=3, gt=0, description="Seconds between updates to a waiting client.")

    @field_validator("priorities")
    @classmethod
    def _validate_priorities(cls, priorities: tuple[str, ...]) -> tuple[str, ...]:
        if invalid := [each for each in priorities if not _PRIORITY.fullmatch(each)]:
            raise ValueError(f"expected kinds or keys with a number, such as 'chat=1'; got {quote_list(invalid)}")
        return priorities

    @property
    def priority_by_name(self) -> Mapping[str, float]:
        """The priorities, by kind or key."""
        return {name: float(number) for name, _, number in (each.rpartition("=") for each in self.priorities)}


class WorkerSettings(BaseModel, frozen=True, extra="forbid"):
    """Engines in other processes, on this and other machines."""

    key_env: str = Field(
        default="ANTIPHON_WORKER_KEY", min_length=1, description="The environment variable with the key for workers to join."
    )
    embedded: Literal["process", "thread"] = Field(default="process", description="Where the embedded models run.")
    probe_s: float = Field(default=5, gt=0, description="Seconds between health checks of an idle worker.")
    failures: int = Field(default=3, ge=1, description="Consecutive failures after which a worker is quarantined.")
    quarantine_s: float = Field(default=60, gt=0, description="Seconds that a quarantined worker gets no clients.")


class FilesSettings(BaseModel, frozen=True, extra="forbid"):
    """Uploaded files."""

    url: str | None = Field(
        default=None, min_length=1, description="Where to store files: a folder or `s3://…`; unset: in the home folder."
    )
    upload_mib: int = Field(default=512, ge=1, description="The most MiB of one file.")
    tenant_gb: float = Field(default=10, ge=0, description="The most gigabytes of one tenant's files; 0: no limit.")
    key_gb: float = Field(default=0, ge=0, description="The most gigabytes of files uploaded with one key; 0: no limit.")
    tenant_files: int = Field(default=100_000, ge=0, description="The most files of one tenant; 0: no limit.")


class RecordingSettings(BaseModel, frozen=True, extra="forbid"):
    """Recordings of sessions."""

    when: Literal["never", "consent", "always"] = Field(
        default="never", description="Which sessions to record: none, those that request it, or all; a key may have its own rule."
    )
    url: str | None = Field(
        default=None, min_length=1, description="Where to store recordings: a folder or `s3://…`; unset: in the home folder."
    )
    days: float = Field(default=30, ge=0, description="Days after which a recording is deleted; 0: never.")
    max_gb: float = Field(default=10, ge=0, description="Gigabytes after which the oldest recordings are deleted; 0: never.")
    spool_gb: float = Field(
        default=10, ge=0, description="Gigabytes for recordings that can't be stored yet; beyond it the oldest are deleted; 0: no limit."
    )
    free_gb: float = Field(default=1, ge=0, description="Gigabytes to leave free on the home folder's disk; 0: none.")

    @property
    def spool_bytes(self) -> int:
        """`spool_gb` in bytes."""
        return math.ceil(self.spool_gb * 10**9)

    @property
    def free_bytes(self) -> int:
        """`free_gb` in bytes."""
        return math.ceil(self.free_gb * 10**9)


PROMPT_PREFIX = "pmpt_"

PROMPT_ID = re.compile(PROMPT_PREFIX + "[A-Za-z0-9_-]{1,64}")
"""The form of a prompt's id; the original's are `pmpt_` and 48 hexadecimal digits."""


def _describe_prompt_table(schema: dict[str, Any]) -> None:
    """Describe a prompt's table as it is in a file, where its content are keys of the table itself."""
    schema["additionalProperties"] = True
    del schema["properties"]["content"]


class PromptEntry(BaseModel, frozen=True, extra="forbid", json_schema_extra=_describe_prompt_table):
    """
    A version of a stored prompt that every tenant has.

    Attributes:
        content: the other keys of its table.
    """

    id: str = Field(pattern=rf"^{PROMPT_ID.pattern}$", description="The name that requests use in `prompt.id`; begins with `pmpt_`.")
    version: int = Field(default=1, ge=1, lt=2**31, description="The number of this version.")
    default: bool = Field(default=False, description="Whether requests that name no version get this one; else they get the highest.")
    content: dict[str, Any] = {}
