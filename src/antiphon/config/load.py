"""
The configuration: what can be set, and which value wins where several sources set it.

Sources, the last wins: defaults, `/etc/antiphon/config.toml`, `$XDG_CONFIG_HOME/antiphon/config.toml`,
`./antiphon.toml`, the file named by `--config`, the environment, flags. `load` depends only on its arguments and the
files they lead to, and knows the origin of every value. `docs/reference/configuration.md` has a heading for every
setting.
"""

import contextlib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from antiphon.config.mistakes import FOLDER_SETTINGS, TABLE_LISTS, describe_mistake
from antiphon.config.rewrites import MAX_REWRITES, RewriteEntry
from antiphon.config.routing import MAX_ROUTES, RouteEntry
from antiphon.config.settings import (
    BackgroundSettings,
    CallsSettings,
    FilesSettings,
    LoggingSettings,
    MinicpmoSettings,
    PromptEntry,
    QueueSettings,
    RealtimeSettings,
    RecordingSettings,
    ResponsesSettings,
    ServerSettings,
    SpeechSettings,
    StoreSettings,
    WorkerSettings,
)
from antiphon.config.toml_lines import KeyPath, find_lines, format_key, nearest_line
from antiphon.config.tools.settings import ToolsSettings
from antiphon.config.webhooks import MAX_WEBHOOKS, WebhookEntry
from antiphon.errors import ServerError, quote_list
from antiphon.masking import mask_secrets

_SYSTEM_FILE = Path("/etc/antiphon/config.toml")

# Every setting has an environment variable: its dotted key in capitals, with `__` for the dot. These also have a short
# one.
_SHORT_NAMES = {
    "ANTIPHON_HOST": "ANTIPHON_SERVER__HOST",
    "ANTIPHON_PORT": "ANTIPHON_SERVER__PORT",
    "ANTIPHON_MODELS": "ANTIPHON_MODELS_DIR",
}


class ConfigError(ServerError):
    """
    The configuration is invalid; the message has a line for each mistake.

    Attributes:
        valid_part: what is left without the mistakes, to be checked further; None if there is nothing.
    """

    valid_part: "Config | None" = None


def _describe_model_table(schema: dict[str, Any]) -> None:
    """Describe a model's table as it is in a file, where the engine's options are keys of the table itself."""
    schema["additionalProperties"] = True
    for name in ("options", "origin_folder"):
        del schema["properties"][name]


class ModelEntry(BaseModel, frozen=True, extra="forbid", json_schema_extra=_describe_model_table):
    """
    A model that the server offers.

    Attributes:
        options: the keys of its table that the engine reads.
        origin_folder: the folder that relative paths in `options` start from: the folder of the configuration file.
    """

    name: str = Field(min_length=1, description="The name that clients use in `model`.")
    engine: str = Field(min_length=1, description="The engine that answers, such as `local` or `scripted`.")
    sessions: int | None = Field(
        default=None, ge=1, description="The most conversations at once that MiniCPM-o clients may have with it; unset: the engine's own."
    )
    options: dict[str, Any] = {}
    origin_folder: Path = Path()

    @property
    def upstream_tables(self) -> list[Mapping[str, Any]]:
        """The tables in its option `upstreams`, if it has several."""
        upstreams = self.options.get("upstreams")
        return [table for table in upstreams if isinstance(table, dict)] if isinstance(upstreams, list) else []


_NameT = TypeVar("_NameT", ModelEntry, RewriteEntry, RouteEntry, WebhookEntry)


class Config(BaseModel, frozen=True, extra="forbid"):
    """
    All settings, validated.

    Attributes:
        home: the absolute folder of everything that the server writes and must keep.
        models_dir: the absolute folder of model files, which can be downloaded again.
    """

    home: Path = Field(description="Folder of the server's own data.")
    models_dir: Path = Field(description="Folder of model weights.")
    server: ServerSettings = ServerSettings()
    responses: ResponsesSettings = ResponsesSettings()
    background: BackgroundSettings = BackgroundSettings()
    realtime: RealtimeSettings = RealtimeSettings()
    calls: CallsSettings = CallsSettings()
    minicpmo: MinicpmoSettings = MinicpmoSettings()
    queue: QueueSettings = QueueSettings()
    workers: WorkerSettings = WorkerSettings()
    recording: RecordingSettings = RecordingSettings()
    files: FilesSettings = FilesSettings()
    speech: SpeechSettings = SpeechSettings()
    tools: ToolsSettings = ToolsSettings()
    store: StoreSettings = StoreSettings()
    logging: LoggingSettings = LoggingSettings()
    models: tuple[ModelEntry, ...] = Field(default=(), description="The models offered; a later list replaces an earlier one.")
    routing: tuple[RouteEntry, ...] = Field(
        default=(),
        max_length=MAX_ROUTES,
        description="Names behind which the server chooses a model; one table, or several, of which a later list replaces an earlier one.",
    )
    prompts: tuple[PromptEntry, ...] = Field(
        default=(), description="Stored prompts that every tenant has; a later list replaces an earlier one."
    )
    webhooks: tuple[WebhookEntry, ...] = Field(
        default=(), max_length=MAX_WEBHOOKS, description="Where to send events; a later list replaces an earlier one."
    )

    rewrites: tuple[RewriteEntry, ...] = Field(
        default=(), max_length=MAX_REWRITES, description="What is done to answers, in this order; a later list replaces an earlier one."
    )

    @field_validator("models", "routing", "webhooks", "rewrites")
    @classmethod
    def _validate_unique_names(cls, entries: tuple[_NameT, ...], info: ValidationInfo) -> tuple[_NameT, ...]:
        duplicates = [name for name, count in Counter(entry.name for entry in entries).items() if count > 1]
        if duplicates:
            raise ValueError(f"more than one {(info.field_name or '').removesuffix('s')} is named {quote_list(duplicates)}")
        return entries

    @field_validator("routing", mode="before")
    @classmethod
    def _validate_single_route(cls, routes: Any) -> Any:
        return [routes] if isinstance(routes, dict) else routes

    @field_validator("prompts")
    @classmethod
    def _validate_prompts(cls, prompts: tuple[PromptEntry, ...]) -> tuple[PromptEntry, ...]:
        versions = Counter((prompt.id, prompt.version) for prompt in prompts)
        if duplicates := [f"{id} (version {version})" for (id, version), count in versions.items() if count > 1]:
            raise ValueError(f"more than one prompt is {quote_list(duplicates)}")
        defaults = Counter(prompt.id for prompt in prompts if prompt.default)
        if duplicates := [id for id, count in defaults.items() if count > 1]:
            raise ValueError(f"more than one version is the default of {quote_list(duplicates)}")
        return prompts

    # Private, so that they are never dumped, shown or put into a schema.
    _secrets: dict[str, str] = PrivateAttr(default_factory=dict)
    _places: dict[str, str] = PrivateAttr(default_factory=dict)
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> Mapping[str, str]:
        """By dotted key, the file, variable or flag that set a setting; one that is not there is built-in."""
        return self._origins

    @property
    def secrets(self) -> Mapping[str, str]:
        """The values of the environment variables that settings name, by variable."""
        return self._secrets

    def locate(self, key: str, problem: str) -> str:
        """
        The problem with its place in a file before it: `antiphon.toml:12: ...`. Unchanged if no file is known to have it.

        Args:
            key: of a table in a list, or of a setting in it, such as `routing[0].default`.
        """
        while key and key not in self._places:
            key = key.rpartition(".")[0]
        return f"{self._places[key]}: {problem}" if key else problem

    def locate_model(self, name: str, problem: str) -> str:
        """As `locate`, for a problem of a model: the place is that of the option that the problem names."""
        key = next((f"models[{index}]" for index, model in enumerate(self.models) if model.name == name), "")
        for option in re.findall(r"[`'](?:\$\.)?([^`'\s]+)[`']", problem):
            if f"{key}.{option}" in self._places:
                key = f"{key}.{option}"  # This may be a table that contains the next one.
        return self.locate(key, problem)

    @property
    def database_url(self) -> str | None:
        """The SQLAlchemy URL of the store; None where it is in memory."""
        match self.store.url:
            case "memory":
                return None
            case "sqlite":
                return f"sqlite:///{self.home / 'antiphon.sqlite3'}"
            case url:
                return url

    @property
    def tls_folder(self) -> Path:
        """The folder of the certificates that the server makes."""
        return self.home / "tls"

    @property
    def ca_file(self) -> Path:
        """The authority of these certificates, for people to install."""
        return self.tls_folder / "ca.crt"

    @property
    def recordings_location(self) -> str:
        """The location of recordings: the path of a folder, or a URL."""
        url = self.recording.url or "recordings"
        return url if "://" in url else str(self.home / url)

    @property
    def files_location(self) -> str | None:
        """As `recordings_location`, of uploaded files. None if the store is in memory: files without records could not be found."""
        if self.files.url is None and self.database_url is None:
            return None
        url = self.files.url or "files"
        return url if "://" in url else str(self.home / url)

    @property
    def has_shared_store(self) -> bool:
        """Whether several servers may use the store at the same time."""
        return self.store.url.startswith("postgres")


class LoadedConfig(NamedTuple):
    """
    A configuration, and the origin of each value.

    Attributes:
        origins: for every setting's dotted key (`server.port`) the file, variable or flag that set it, or `built-in`.
    """

    config: Config
    origins: dict[str, str]


class _Setting(NamedTuple):
    """
    A value from one source.

    Attributes:
        folder: where its relative paths start.
        lines: of the keys in its file; empty if it comes from elsewhere.
    """

    path: tuple[str, ...]
    value: Any
    origin: str
    folder: Path
    lines: Mapping[KeyPath, int] = {}

    def place(self, path: KeyPath) -> str:
        """Where the value at `path` stands: the line of a file, a variable or a flag."""
        return f"{self.origin}:{nearest_line(self.lines, path)}" if self.lines else self.origin


def load(
    flags: Mapping[str, object], file: Path | None, environ: Mapping[str, str], cwd: Path, system_file: Path = _SYSTEM_FILE
) -> LoadedConfig:
    """
    The configuration from all sources.

    Args:
        flags: by dotted key, such as `{"server.port": 9000}`; None for a flag that was not used.
        file: from `--config`, or else from `ANTIPHON_CONFIG`. Unlike the default files, it must exist.
        environ: the environment; nothing else of the process is read.
        cwd: absolute; where relative paths start that don't come from a file.
        system_file: the configuration of the whole machine.

    Raises:
        ConfigError: with a line for each mistake: the source, and the line in a file, the key, what was expected and what it got.
    """
    config_home = _xdg_folder(environ, "XDG_CONFIG_HOME", ".config")
    explicit_file = file or (Path(environ["ANTIPHON_CONFIG"]) if environ.get("ANTIPHON_CONFIG") else None)
    layers = [
        _default_settings(environ, cwd),
        _file_settings(system_file),
        _file_settings(config_home / "config.toml") if config_home else (),
        _file_settings(cwd / "antiphon.toml"),
        _file_settings(cwd / explicit_file, is_required=True) if explicit_file else (),
        _environment_settings(environ, cwd),
        _flag_settings(flags, cwd),
    ]
    settings = {setting.path: setting for layer in layers for setting in layer}
    try:
        config = _validate(settings, environ.get("HOME"))
    except ConfigError as error:
        if error.valid_part is not None:
            # The mistakes are reported in any case; a secret that can't be read must not hide them.
            with contextlib.suppress(ConfigError):
                error.valid_part._secrets.update(_read_secrets(error.valid_part, environ))
        raise
    config._secrets.update(_read_secrets(config, environ))
    set_by = {path: _setting_at(settings, path) for path, _ in _leaves(config.model_dump())}
    config._origins.update({".".join(path): setting.origin for path, setting in set_by.items() if setting})
    return LoadedConfig(config, {".".join(path): setting.origin if setting else "built-in" for path, setting in set_by.items()})


def with_secrets(config: Config, secrets: Mapping[str, str]) -> Config:
    """A copy of the configuration with these secrets and no others."""
    # Not `model_copy`, which would share the private dictionaries with the original.
    copy = Config.model_validate(config.model_dump())
    copy._secrets.update(secrets)
    copy._places.update(config._places)
    copy._origins.update(config._origins)
    return copy


def with_origins(config: Config, origins: Mapping[str, str]) -> Config:
    """A copy of the configuration that has the origins of these settings, and of no others."""
    copy = with_secrets(config, config.secrets)
    copy._origins.clear()
    copy._origins.update(origins)
    return copy


def pack(config: Config) -> bytes:
    """The configuration with its secrets and places, for other processes of this server only."""
    private = {"secrets": config._secrets, "places": config._places, "origins": config._origins}
    return json.dumps({"config": config.model_dump(mode="json"), **private}).encode()


def unpack(payload: bytes) -> Config:
    """The configuration from the bytes of `pack`, with secrets, places and origins."""
    content = json.loads(payload)
    config = Config.model_validate(content["config"])
    config._secrets.update(content["secrets"])
    config._places.update(content["places"])
    config._origins.update(content["origins"])
    return config


def _read_secrets(config: Config, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """
    The variables named by engine options that end in `_env`, and by the settings of speech, workers, Responses, webhooks
    and tools, with their values.

    If a variable is not set, the one with `_FILE` appended may name a file with the value, as is common for secrets of
    containers.

    Raises:
        ConfigError: that file can't be read.
    """
    tables = [table for model in config.models for table in (model.options, *model.upstream_tables)]
    option_variables = [variable for table in tables for key, variable in table.items() if key.endswith("_env")]
    for variable in (
        *option_variables,
        config.speech.stt_key_env,
        config.speech.voice_key_env,
        config.workers.key_env,
        config.responses.encryption_keys_env,
        *(webhook.secret_env for webhook in config.webhooks),
        *(server.key_env for server in config.tools.mcp),
        config.tools.web_search.key_env if config.tools.web_search is not None else None,
        *(entry.key_env for entry in config.tools.images),
    ):
        if isinstance(variable, str) and variable in environ:
            yield variable, environ[variable]
        elif isinstance(variable, str) and (path := environ.get(f"{variable}_FILE")):
            yield variable, _read_secret_file(path, f"{variable}_FILE")


def _read_secret_file(path: str, variable: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{variable}: {path}: can't be read") from None


def schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file."""
    json_schema = Config.model_json_schema()
    del json_schema["required"]  # Every setting has a default.
    return json_schema


# The sources


def _default_settings(environ: Mapping[str, str], cwd: Path) -> Iterator[_Setting]:
    """The two defaults that depend on the environment; all others are declared with their settings."""
    folders = {
        "home": _xdg_folder(environ, "XDG_DATA_HOME", ".local/share"),
        "models_dir": _xdg_folder(environ, "XDG_CACHE_HOME", ".cache"),
    }
    inside = {"home": "", "models_dir": "models"}
    return (_Setting((key,), folder / inside[key], "built-in", cwd) for key, folder in folders.items() if folder)


def _xdg_folder(environ: Mapping[str, str], variable: str, under_home: str) -> Path | None:
    """
    Our folder in an XDG base directory; None if neither the variable nor HOME is set.

    Source: XDG Base Directory Specification 0.8, which says to ignore a relative path.
    """
    base_folder = Path(environ.get(variable, ""))
    if base_folder.is_absolute():
        return base_folder / "antiphon"
    return Path(environ["HOME"], under_home, "antiphon") if environ.get("HOME") else None


def _file_settings(path: Path, *, is_required: bool = False) -> Iterator[_Setting]:
    """The settings in a TOML file; none where it is not required and not there."""
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        if is_required:
            raise ConfigError(f"{path}: there is no such file") from None
        return
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    lines = find_lines(text)
    if isinstance(table.get("routing"), dict):  # A single table is an array of one.
        table["routing"] = [table["routing"]]
        lines |= {("routing", 0, *path[1:]): line for path, line in lines.items() if path[0] == "routing"}
    unknown_tables = [((key,), value) for key, value in table.items() if value == {} and key not in Config.model_fields]
    for keys, value in (*unknown_tables, *_leaves(table)):  # An empty table has no leaves.
        yield _Setting(keys, value, str(path), path.parent, lines)


def _environment_settings(environ: Mapping[str, str], cwd: Path) -> Iterator[_Setting]:
    """
    The settings in the environment. Variables with our prefix but without a section or setting belong to other
    programs.
    """
    ours = {name: _SHORT_NAMES.get(name, name).removeprefix("ANTIPHON_") for name in environ if name.startswith("ANTIPHON_")}
    # The short names last, so that they win over the long ones.
    for name, key in sorted(ours.items(), key=lambda pair: pair[0] in _SHORT_NAMES):
        path = tuple(key.lower().split("__"))
        if environ[name] and (len(path) > 1 or path in FOLDER_SETTINGS):
            yield _Setting(path, environ[name], name, cwd)


def _flag_settings(flags: Mapping[str, Any], cwd: Path) -> Iterator[_Setting]:
    """The settings on the command line; a flag has the name of the last part of its key."""
    for key, value in flags.items():
        if value is not None:
            path = tuple(key.split("."))
            yield _Setting(path, value, f"--{path[-1].replace('_', '-')}", cwd)


def _leaves(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value in nested tables, with its path; lists are values."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


# Validation


def _validate(settings: Mapping[tuple[str, ...], _Setting], user_home: str | None) -> Config:
    tree: dict[str, Any] = {}
    # Short paths first: a value that stands where a table should be is met before the table's keys.
    for setting in sorted(settings.values(), key=lambda setting: len(setting.path)):
        _set_nested(tree, setting, _resolve_paths(setting, user_home))
    try:
        config = Config.model_validate(tree)
        config._places.update(_table_places(settings))
        return config
    except ValidationError as error:
        config_error = ConfigError("\n".join(_error_line(details, settings) for details in error.errors()))
        wrong = {details["loc"][:2] for details in error.errors()}
        config_error.valid_part = _valid_part(tree, wrong)
        if config_error.valid_part is not None:
            config_error.valid_part._places.update(_table_places(settings, wrong))
        raise config_error from None


def _valid_part(tree: Mapping[str, Any], wrong: Collection[KeyPath]) -> Config | None:
    """The configuration without the settings that are wrong, and without the tables of an array that are."""
    rest: dict[str, Any] = {key: value for key, value in tree.items() if (key,) not in wrong}
    for section, value in rest.items():
        if isinstance(value, dict):
            rest[section] = {key: setting for key, setting in value.items() if (section, key) not in wrong}
        elif isinstance(value, list):
            rest[section] = [entry for index, entry in enumerate(value) if (section, index) not in wrong]
    try:
        return Config.model_validate(rest)
    except ValidationError:
        return None


def _table_places(settings: Mapping[tuple[str, ...], _Setting], wrong: Collection[KeyPath] = ()) -> Iterator[tuple[str, str]]:
    """The keys in lists of tables, and their places in files. Wrong tables are left out, and the indices counted without them."""
    for section in TABLE_LISTS:
        setting = settings.get((section,))
        if setting is None or not isinstance(setting.value, list):
            continue
        valid_indices = [index for index in range(len(setting.value)) if (section, index) not in wrong]
        new_indices = {index: new_index for new_index, index in enumerate(valid_indices)}
        for path in setting.lines:
            if path[0] == section and len(path) > 1 and path[1] in new_indices:
                yield format_key((section, new_indices[path[1]], *path[2:])), setting.place(path)


def _error_line(error: ErrorDetails, settings: Mapping[tuple[str, ...], _Setting]) -> str:
    path = error["loc"]
    setting = _setting_at(settings, path)
    return f"{setting.place(path) if setting else 'built-in'}: {format_key(path)}: {describe_mistake(error, Config)}"


def _set_nested(tree: dict[str, Any], setting: _Setting, value: Any) -> None:
    *above, key = setting.path
    node: Any = tree
    for depth, part in enumerate(above, start=1):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            table, value = ".".join(above[:depth]), mask_secrets(node, part)
            raise ConfigError(f"{setting.place(setting.path)}: {'.'.join(setting.path)}: {table} is not a table elsewhere, but {value!r}")
    node[key] = value


def _resolve_paths(setting: _Setting, user_home: str | None) -> Any:
    """A setting's value with its relative paths made absolute; a model's table gets the folder where they start."""
    if setting.path in FOLDER_SETTINGS and isinstance(setting.value, str | Path):
        return _absolute(setting.value, setting.folder, user_home)
    if (key := _PATHS_IN_TABLES.get(setting.path)) is not None and isinstance(setting.value, list):
        return [
            table | {key: str(_absolute(table[key], setting.folder, user_home))}
            if isinstance(table, dict) and isinstance(table.get(key), str)
            else table
            for table in setting.value
        ]
    if setting.path == ("models",) and isinstance(setting.value, list):
        return [_split_model_table(table, setting.folder) for table in setting.value]
    if setting.path == ("prompts",) and isinstance(setting.value, list):
        return [_split_prompt_table(table) for table in setting.value]
    return setting.value


_PATHS_IN_TABLES = {("tools", "functions"): "file", ("tools", "mcp"): "folder", ("tools", "web_search", "folders"): "path"}
"""Settings that are lists of tables, and the key of each table that is a path."""


def _absolute(value: str | Path, folder: Path, user_home: str | None) -> Path:
    path = Path(value)
    if path.parts[:1] == ("~",) and user_home:
        path = Path(user_home, *path.parts[1:])
    return folder / path


def _split_model_table(table: Any, folder: Path) -> Any:
    """A `[[models]]` table with the engine's keys moved to `options`."""
    if not isinstance(table, dict):
        return table
    own = {key: table[key] for key in ("name", "engine", "sessions") if key in table}
    return own | {"options": {key: value for key, value in table.items() if key not in own}, "origin_folder": folder}


def _split_prompt_table(table: Any) -> Any:
    """A `[[prompts]]` table with its content moved to `content`."""
    if not isinstance(table, dict):
        return table
    own = {key: table[key] for key in ("id", "version", "default") if key in table}
    return own | {"content": {key: value for key, value in table.items() if key not in own}}


def _setting_at(settings: Mapping[tuple[str, ...], _Setting], path: KeyPath) -> _Setting | None:
    """The setting that has the value at `path`, or a part of it; None if it is built-in."""
    for setting_path, setting in settings.items():
        depth = min(len(setting_path), len(path))
        if setting_path[:depth] == path[:depth]:
            return setting
    return None
