"""
The configuration: what can be set, and how one value is chosen where several places set it.

Places, last wins: built in, `/etc/antiphon/config.toml`, `$XDG_CONFIG_HOME/antiphon/config.toml`, `./antiphon.toml`, the file named
by `--config`, the environment, flags. `load` is a pure function of its arguments and of the files they lead to, and knows for every
value who set it. `docs/reference/configuration.md` has a heading for every setting.
"""

import difflib
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, field_validator
from pydantic_core import ErrorDetails

from antiphon.config.settings import (
    CallsSettings,
    LoggingSettings,
    MinicpmoSettings,
    QueueSettings,
    RealtimeSettings,
    RecordingSettings,
    ResponsesSettings,
    ServerSettings,
    SpeechSettings,
    StoreSettings,
    WorkerSettings,
)
from antiphon.errors import ServerError, quote_list

_SYSTEM_FILE = Path("/etc/antiphon/config.toml")

# Every setting has a twin in the environment: its dotted key in capitals, with `__` for the dot. These few have a shorter one.
_SHORT_NAMES = {
    "ANTIPHON_HOST": "ANTIPHON_SERVER__HOST",
    "ANTIPHON_PORT": "ANTIPHON_SERVER__PORT",
    "ANTIPHON_MODELS": "ANTIPHON_MODELS_DIR",
}


class ConfigError(ServerError):
    """The configuration can't be used as it stands; the message has a line for each mistake."""


def _describe_model_table(schema: dict[str, Any]) -> None:
    """Describe a model's table as it stands in a file: the engine's options are among its keys."""
    schema["additionalProperties"] = True
    for name in ("options", "origin_folder"):
        del schema["properties"][name]


class ModelEntry(BaseModel, frozen=True, extra="forbid", json_schema_extra=_describe_model_table):
    """
    A model that the server offers.

    Attributes:
        options: every key of its table that is the engine's to read.
        origin_folder: the folder that relative paths in `options` start from: that of the file which has the entry.
    """

    name: str = Field(min_length=1, description="What clients put into `model`.")
    engine: str = Field(min_length=1, description="What answers, such as `local` or `scripted`.")
    sessions: int | None = Field(
        default=None, ge=1, description="The most conversations at once that MiniCPM-o clients may have with it; unset: the engine's own."
    )
    options: dict[str, Any] = {}
    origin_folder: Path = Path()


class Config(BaseModel, frozen=True, extra="forbid"):
    """
    All settings, checked.

    Attributes:
        home: the absolute folder of everything that the server writes and must keep.
        models_dir: the absolute folder of model files, which can be fetched again.
    """

    home: Path = Field(description="Folder of what the server keeps.")
    models_dir: Path = Field(description="Folder of model weights.")
    server: ServerSettings = ServerSettings()
    responses: ResponsesSettings = ResponsesSettings()
    realtime: RealtimeSettings = RealtimeSettings()
    calls: CallsSettings = CallsSettings()
    minicpmo: MinicpmoSettings = MinicpmoSettings()
    queue: QueueSettings = QueueSettings()
    workers: WorkerSettings = WorkerSettings()
    recording: RecordingSettings = RecordingSettings()
    speech: SpeechSettings = SpeechSettings()
    store: StoreSettings = StoreSettings()
    logging: LoggingSettings = LoggingSettings()
    models: tuple[ModelEntry, ...] = Field(default=(), description="The models offered; a later list replaces an earlier one.")

    @field_validator("models")
    @classmethod
    def _validate_unique_names(cls, models: tuple[ModelEntry, ...]) -> tuple[ModelEntry, ...]:
        twice = [name for name, count in Counter(model.name for model in models).items() if count > 1]
        if twice:
            raise ValueError(f"more than one model is named {quote_list(twice)}")
        return models

    # Not a setting: never dumped, shown or put into a schema.
    _secrets: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def secrets(self) -> Mapping[str, str]:
        """Values of the environment variables that the models' options name, by their names."""
        return self._secrets

    @property
    def database_url(self) -> str | None:
        """The SQLAlchemy URL of the store; None where it is in memory."""
        urls = {"memory": None, "sqlite": f"sqlite:///{self.home / 'antiphon.sqlite3'}"}
        return urls.get(self.store.url, self.store.url)

    @property
    def recordings_location(self) -> str:
        """Where recordings are kept: the path of a folder, or a URL."""
        url = self.recording.url or "recordings"
        return url if "://" in url else str(self.home / url)

    @property
    def has_shared_store(self) -> bool:
        """Whether several servers may use the store at the same time."""
        return self.store.url.startswith("postgres")


class LoadedConfig(NamedTuple):
    """
    A configuration, and who set what.

    Attributes:
        origins: for every setting's dotted key (`server.port`) the file, variable or flag that set it, or `built-in`.
    """

    config: Config
    origins: dict[str, str]


class _Setting(NamedTuple):
    """One value that one place set; `folder` is where its relative paths start."""

    path: tuple[str, ...]
    value: Any
    origin: str
    folder: Path


def load(
    flags: Mapping[str, Any], file: Path | None, environ: Mapping[str, str], cwd: Path, system_file: Path = _SYSTEM_FILE
) -> LoadedConfig:
    """
    The configuration that holds here.

    Args:
        flags: by dotted key, such as `{"server.port": 9000}`; None stands for a flag that was not given.
        file: what `--config` named; `ANTIPHON_CONFIG` is its twin. Unlike the files looked for by default, it must exist.
        environ: the environment; nothing else of the process is read.
        cwd: absolute; where relative paths start that don't come from a file.
        etc: the file of the whole machine.

    Raises:
        ConfigError: with a line for each mistake, naming the place, the key, what was expected and what came.
    """
    config_home = _xdg_folder(environ, "XDG_CONFIG_HOME", ".config")
    named = file or (Path(environ["ANTIPHON_CONFIG"]) if environ.get("ANTIPHON_CONFIG") else None)
    layers = [
        _default_settings(environ, cwd),
        _file_settings(system_file),
        _file_settings(config_home / "config.toml") if config_home else (),
        _file_settings(cwd / "antiphon.toml"),
        _file_settings(cwd / named, is_required=True) if named else (),
        _environment_settings(environ, cwd),
        _flag_settings(flags, cwd),
    ]
    chosen = {setting.path: setting for layer in layers for setting in layer}
    config = _validate(chosen, environ.get("HOME"))
    config._secrets.update(_read_secrets(config, environ))
    return LoadedConfig(config, {".".join(path): _origin_of(chosen, path) for path, _ in _leaves(config.model_dump())})


def pack(config: Config) -> bytes:
    """The configuration with its secrets, for another process of this server and no one else."""
    return json.dumps({"config": config.model_dump(mode="json"), "secrets": dict(config.secrets)}).encode()


def unpack(payload: bytes) -> Config:
    """The configuration that was packed."""
    told = json.loads(payload)
    config = Config.model_validate(told["config"])
    config._secrets.update(told["secrets"])
    return config


def _read_secrets(config: Config, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """
    The variables that the engines' options name, in keys that end in `_env`, those of servers of speech, and that of workers.

    Where there is none of a name, the one with `_FILE` behind it names a file with the value, as secrets are handed to containers.

    Raises:
        ConfigError: there is no such file.
    """
    named = [variable for model in config.models for key, variable in model.options.items() if key.endswith("_env")]
    for variable in (*named, config.speech.ears_key_env, config.speech.voice_key_env, config.workers.key_env):
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
    described = Config.model_json_schema()
    del described["required"]  # every setting has a value without being set
    return described


# What each place says


def _default_settings(environ: Mapping[str, str], cwd: Path) -> Iterator[_Setting]:
    """The two defaults that depend on who asks; all others stand with their settings."""
    folders = {
        "home": _xdg_folder(environ, "XDG_DATA_HOME", ".local/share"),
        "models_dir": _xdg_folder(environ, "XDG_CACHE_HOME", ".cache"),
    }
    inside = {"home": "", "models_dir": "models"}
    return (_Setting((key,), folder / inside[key], "built-in", cwd) for key, folder in folders.items() if folder)


def _xdg_folder(environ: Mapping[str, str], variable: str, under_home: str) -> Path | None:
    """
    Our folder under one of the XDG base directories; None where the environment names neither it nor a home.

    Source: XDG Base Directory Specification 0.8: a relative path is to be ignored.
    """
    given = Path(environ.get(variable, ""))
    if given.is_absolute():
        return given / "antiphon"
    return Path(environ["HOME"], under_home, "antiphon") if environ.get("HOME") else None


def _file_settings(path: Path, *, is_required: bool = False) -> Iterator[_Setting]:
    """What a TOML file says."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
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
    for keys, value in _leaves(table):
        yield _Setting(keys, value, str(path), path.parent)


def _environment_settings(environ: Mapping[str, str], cwd: Path) -> Iterator[_Setting]:
    """What the environment says. Variables with our prefix that name neither a section nor a setting belong to someone else."""
    ours = {name: _SHORT_NAMES.get(name, name).removeprefix("ANTIPHON_") for name in environ if name.startswith("ANTIPHON_")}
    for name, key in sorted(ours.items(), key=lambda pair: pair[0] in _SHORT_NAMES):
        path = tuple(key.lower().split("__"))
        if environ[name] and (len(path) > 1 or path in _FOLDER_SETTINGS):
            yield _Setting(path, environ[name], name, cwd)


def _flag_settings(flags: Mapping[str, Any], cwd: Path) -> Iterator[_Setting]:
    """What the command line says; a flag is called like the last part of its key."""
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


# From what was said to what holds

_FOLDER_SETTINGS = {("home",), ("models_dir",)}


def _validate(settings: Mapping[tuple[str, ...], _Setting], user_home: str | None) -> Config:
    """The typed configuration of the values chosen."""
    tree: dict[str, Any] = {}
    for setting in sorted(settings.values(), key=lambda setting: len(setting.path)):
        _set_nested(tree, setting, _resolve_paths(setting, user_home))
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_error_line(mistake, settings) for mistake in error.errors())) from None


def _set_nested(tree: dict[str, Any], setting: _Setting, value: Any) -> None:
    """Put a value into nested tables."""
    *above, key = setting.path
    node: Any = tree
    for depth, part in enumerate(above, start=1):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            place = ".".join(above[:depth])
            raise ConfigError(f"{setting.origin}: {'.'.join(setting.path)}: {place} is not a table elsewhere, but {node!r}")
    node[key] = value


def _resolve_paths(setting: _Setting, user_home: str | None) -> Any:
    """A setting's value with its relative paths made absolute, or told where they start."""
    if setting.path in _FOLDER_SETTINGS and isinstance(setting.value, str | Path):
        written = Path(setting.value)
        if written.parts[:1] == ("~",) and user_home:
            written = Path(user_home, *written.parts[1:])
        return setting.folder / written
    if setting.path == ("models",) and isinstance(setting.value, list):
        return [_split_model_table(table, setting.folder) for table in setting.value]
    return setting.value


def _split_model_table(table: Any, folder: Path) -> Any:
    """A `[[models]]` table with the engine's keys set apart."""
    if not isinstance(table, dict):
        return table
    own = {key: table[key] for key in ("name", "engine", "sessions") if key in table}
    return own | {"options": {key: value for key, value in table.items() if key not in own}, "origin_folder": folder}


def _origin_of(settings: Mapping[tuple[str, ...], _Setting], path: tuple[str | int, ...]) -> str:
    """Who set the value at `path`, or set what it lies in, or set something in it."""
    for setting_path, setting in settings.items():
        shared = min(len(setting_path), len(path))
        if setting_path[:shared] == path[:shared]:
            return setting.origin
    return "built-in"


# Telling mistakes


def _error_line(error: ErrorDetails, settings: Mapping[tuple[str, ...], _Setting]) -> str:
    """One line for one mistake."""
    path = error["loc"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return f"{_origin_of(settings, path)}: {key}: {_problem(error)}"


def _problem(error: ErrorDetails) -> str:
    """What was expected, and what came."""
    came = repr(error["input"])
    match error["type"]:
        case "extra_forbidden":
            return f"there is no such setting; {_suggestion(error['loc'])}"
        case "missing":
            return "is missing, and HOME is not set to take it from" if error["loc"] in _FOLDER_SETTINGS else "is missing"
        case "model_type":
            return f"expected a table, got {came}"
        case "tuple_type":
            return f"expected an array of {'tables' if error['loc'] == ('models',) else 'strings'}, got {came}"
        case "path_type":
            return f"expected a path, got {came}"
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case _:
            return f"{error['msg'].replace('Input should be', 'expected')}, got {came}"


def _suggestion(path: tuple[str | int, ...]) -> str:
    """What may have been meant by a key that is none."""
    *above, key = path
    model: Any = Config
    for part in above:
        model = model.model_fields[part].annotation
    known: Iterable[str] = model.model_fields
    close = difflib.get_close_matches(str(key), known, n=1)
    return f"did you mean {quote_list(close)}?" if close else f"there are {quote_list(known)}"
