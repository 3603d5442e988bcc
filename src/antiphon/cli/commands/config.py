"""`antiphon config`: check, show, schema."""

from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import App

from antiphon.cli.common import checks, settings
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter

if TYPE_CHECKING:
    from antiphon.config.load import Config, ModelEntry


_HELP = """
See what is configured, and whether it holds.

Try:
    antiphon config show --origin
    antiphon config check
"""


def build_app() -> App:
    """`config` and what can be done with it."""
    app = App(name="config", help=_HELP)
    for verb in (check, show, schema):
        app.command(verb)
    return app


def check(
    *,
    file: ConfigFlag = None,
    as_json: JsonFlag = False,
    shell: ShellParameter,
) -> None:
    """
    Say whether the configuration holds, and where it is from.

    Where it doesn't, every mistake gets a line, and the exit code is 2. The
    store's address, the models' options and the files that they name are looked
    at too; nothing is loaded, and no other server is asked.

    Try:
        antiphon config check --config antiphon.toml
    """
    loaded = settings.load(shell, file)
    looks = (checks.process_problems, checks.store_problems, checks.model_problems)
    checks.raise_usage_error(mistake for look in looks for mistake in look(loaded.config))
    sources = sorted(set(loaded.origins.values()) - {"built-in"})
    names = [model.name for model in loaded.config.models]
    if as_json:
        return shell.say_json({"ok": True, "sources": sources, "models": names})
    shell.say(f"The configuration holds; set by {', '.join(sources) or 'nobody, so all is built-in'}.")
    return shell.say(f"Models: {', '.join(names) or 'none configured, so the default model is served'}.")


def show(
    *,
    file: ConfigFlag = None,
    origin: bool = False,
    as_json: JsonFlag = False,
    shell: ShellParameter,
) -> None:
    """
    Show every setting.

    Try:
        antiphon config show --origin
        ANTIPHON_PORT=9000 antiphon config show --origin

    Args:
        origin: with the file, variable or flag that set it.
    """
    loaded = settings.load(shell, file)
    values = _flatten(loaded.config)
    if as_json:
        return shell.say_json(
            {key: {"value": value, "origin": loaded.origins.get(key)} if origin else value for key, value in values.items()}
        )
    set_by = {key: f"  # {loaded.origins.get(key, 'built-in')}" if origin else "" for key in values}
    return shell.say_rows([(key, f"= {_format_value(value)}{set_by[key]}") for key, value in values.items()])


def schema(*, shell: ShellParameter) -> None:
    """
    Print the JSON Schema of a configuration file, for editors.

    Try:
        antiphon config schema > antiphon.schema.json
    """
    from antiphon.config import load as config  # noqa: PLC0415 - pydantic takes longer to load than `--help` takes altogether

    shell.say_json(config.schema())


def _flatten(config: "Config") -> dict[str, Any]:
    """Every setting by its dotted key."""
    flat: dict[str, Any] = {}
    for section, value in config.model_dump(mode="json", exclude={"models"}).items():
        flat |= {f"{section}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {section: value}
    flat["store.url"] = settings.mask_password(flat["store.url"])
    return flat | {"models": [_model_table(model) for model in config.models]}


def _model_table(model: "ModelEntry") -> dict[str, Any]:
    """The model's table in a file."""
    sessions = {} if model.sessions is None else {"sessions": model.sessions}
    return {"name": model.name, "engine": model.engine, **sessions, **model.options}


def _format_value(value: Any) -> str:
    return msgspec.json.encode(value).decode()
