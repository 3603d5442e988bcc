"""Every setting of a configuration, by dotted key, without the secrets in it: as operators see it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct
from pydantic import BaseModel

from antiphon.config.changes import is_live
from antiphon.config.load import Config, ModelEntry
from antiphon.masking import MASK, mask_secrets

SecretState = Literal["set", "unset"]


class ShownSetting(Struct, frozen=True, kw_only=True):
    """
    A setting, for people who may be on another machine.

    Attributes:
        value: with a mask for each secret; files are named without their folders.
        origin: the file, variable or flag that set it, or `built-in`.
        default: None where there is none.
        secret: whether the secret that it names or holds is there; None for a setting without one.
        needs_restart: whether a new value takes effect with a restart only.
    """

    key: str
    value: object
    origin: str
    default: object
    secret: SecretState | None
    needs_restart: bool


def list_settings(config: Config) -> Iterator[ShownSetting]:
    """All settings, in the order of the reference."""
    defaults = _defaults()
    for key, value in flatten(config).items():
        yield ShownSetting(
            key=key,
            value=_without_folders(value),
            origin=hide_folders(origin_of(config.origins, key)),
            # The defaults of these depend on the environment, and those of `_defaults` are placeholders.
            default=None if key in ("home", "models_dir") else defaults.get(key),
            secret=_secret_state(key, value, config.secrets),
            needs_restart=not is_live(key),
        )


def flatten(config: Config) -> dict[str, object]:
    """Every setting, by dotted key, with a mask for each secret."""
    flat = {key: value for key, value in _leaves(config) if key not in ("models", "prompts")}
    flat["models"] = [_model_table(model) for model in config.models]
    flat["prompts"] = [prompt.model_dump(exclude={"content"}) | prompt.content for prompt in config.prompts]
    return {key: mask_secrets(value, key.rpartition(".")[2]) for key, value in flat.items()}


def origin_of(origins: Mapping[str, str], key: str) -> str:
    """The origin of a setting. Parts of a table have origins of their own; the first one stands for the table."""
    return next((origin for each, origin in origins.items() if each == key or each.startswith(f"{key}.")), "built-in")


def _leaves(table: BaseModel, path: str = "") -> Iterator[tuple[str, object]]:
    """Every setting of a table and of those in it, as JSON has it."""
    values = table.model_dump(mode="json")
    for name in type(table).model_fields:
        inner = getattr(table, name)
        if isinstance(inner, BaseModel):
            yield from _leaves(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}", values[name]


def _model_table(model: ModelEntry) -> dict[str, object]:
    """The model as in a file, where the engine's options are keys of the table itself."""
    sessions = {} if model.sessions is None else {"sessions": model.sessions}
    return {"name": model.name, "engine": model.engine, **sessions, **model.options}


def hide_folders(message: str) -> str:
    """The message for people on other machines: files are named without their folders."""
    return re.sub(r"(?m)^/(?:[^:/\n]*/)+|(?<![\w:/.])/(?:[^\s:/'\"`]+/)+", "", message)


def _without_folders(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"^(sqlite\w*(?:\+\w+)?:///|file://)/?(?:[^/]*/)*", r"\1", hide_folders(value))
    return value


def _defaults() -> dict[str, object]:
    """The default of every setting that has one."""
    return dict(_leaves(Config(home=Path(), models_dir=Path())))


def _secret_state(key: str, value: object, secrets: Mapping[str, str]) -> SecretState | None:
    """Whether there is a value for each variable that the setting names, or a secret in it."""
    variables = [*_variables(value, key.rpartition(".")[2])]
    if variables:
        return "set" if all(secrets.get(variable) for variable in variables) else "unset"
    return "set" if _has_mask(value) else None


def _variables(value: object, name: str) -> Iterator[str]:
    """The environment variables that the setting of that name reads secrets from, at any depth."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _variables(each, key)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _variables(each, name)
    elif isinstance(value, str) and value and name.endswith("_env"):
        yield value


def _has_mask(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_mask, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_mask, value))
    return isinstance(value, str) and MASK in value
