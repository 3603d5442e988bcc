"""`antiphon config`: check, show, schema."""

from collections.abc import Callable, Iterator

import msgspec
from cyclopts import App

from antiphon.cli.common import checks, settings
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter
from antiphon.cli.common.shell import UsageError
from antiphon.config import load as config_files
from antiphon.config.listing import flatten, origin_of
from antiphon.config.load import Config, ConfigError

app = App(
    name="config",
    help="""
See and check the configuration.

Try:
    antiphon config show --origin
    antiphon config check
""",
)


@app.command
def check(
    *,
    file: ConfigFlag = None,
    as_json: JsonFlag = False,
    shell: ShellParameter,
) -> None:
    """
    Check the configuration, and say where it comes from.

    Prints all errors, one line for each setting or model, with exit code 2. It
    checks the store's address, the models' options, the files they name and what
    tools need, too, but loads no model and connects to no other server.

    Try:
        antiphon config check --config antiphon.toml
    """
    warnings: list[str] = []
    problems: list[str] = []
    loaded_config = None
    try:
        loaded_config = config_files.load({}, file, shell.environ, shell.cwd)
        checkable: Config | None = loaded_config.config
    except ConfigError as error:
        problems, checkable = error.message.splitlines(), error.valid_part
    # What is valid is checked further, so that all mistakes are reported at once.
    if checkable is not None:
        problems += _further_problems(checkable, warnings.append)
    if loaded_config is None or problems:
        if as_json:
            shell.say_json({"ok": False, "errors": problems, "warnings": warnings})
        raise UsageError("\n".join(problems))
    for warning in warnings:
        shell.note(f"warning: {warning}")
    sources = sorted(set(loaded_config.origins.values()) - {"built-in"})
    names = [model.name for model in loaded_config.config.models]
    if as_json:
        return shell.say_json({"ok": True, "sources": sources, "models": names, "warnings": warnings})
    shell.say(f"The configuration is valid; {'set by ' + ', '.join(sources) if sources else 'nothing is set, so all is built-in'}.")
    if routes := [route.name for route in loaded_config.config.routing]:
        shell.say(f"Routes: {', '.join(routes)}.")
    return shell.say(f"Models: {', '.join(names) or 'none configured, so the default model is served'}.")


def _further_problems(config: Config, notice: Callable[[str], None]) -> Iterator[str]:
    """What is wrong with settings that are valid one by one; one line each."""
    yield from checks.process_problems(config)
    yield from checks.store_problems(config)
    yield from checks.prompt_problems(config)
    yield from checks.webhook_problems(config)
    yield from checks.tool_problems(config)
    yield from checks.route_problems(config)
    yield from checks.model_problems(config, notice)


@app.command
def show(
    *,
    file: ConfigFlag = None,
    origin: bool = False,
    as_json: JsonFlag = False,
    shell: ShellParameter,
) -> None:
    """
    Show every setting, with a mask for passwords, keys and the values of headers.

    Try:
        antiphon config show --origin
        ANTIPHON_PORT=9000 antiphon config show --origin

    Args:
        origin: show the file, variable or flag that set each one.
    """
    loaded_config = settings.load(shell, file)
    values = flatten(loaded_config.config)
    if as_json:
        return shell.say_json(
            {key: {"value": value, "origin": origin_of(loaded_config.origins, key)} if origin else value for key, value in values.items()}
        )
    set_by = {key: f"  # {origin_of(loaded_config.origins, key)}" if origin else "" for key in values}
    return shell.say_rows([(key, f"= {_format_value(value)}{set_by[key]}") for key, value in values.items()])


@app.command
def schema(*, shell: ShellParameter) -> None:
    """
    Print the JSON Schema of a configuration file, for editors.

    Try:
        antiphon config schema > antiphon.schema.json
    """
    shell.say_json(config_files.schema())


def _format_value(value: object) -> str:
    return msgspec.json.encode(value).decode()
