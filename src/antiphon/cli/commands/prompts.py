"""`antiphon prompts`: add, update, list, show, versions, set-default and delete."""

import time
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from cyclopts import App, Parameter
from msgspec.structs import asdict

from antiphon.cli.common import checks, lazy, settings
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter
from antiphon.cli.common.shell import Shell, UsageError, format_time
from antiphon.config.load import Config
from antiphon.config.settings import PROMPT_ID, PROMPT_PREFIX
from antiphon.errors import ApiError
from antiphon.records import PromptRecord, PromptVersionRecord
from antiphon.runtime.core.ids import new_id
from antiphon.stores.base import PromptStore, Store
from antiphon.wire.codec.types import JsonDict

app = App(
    name="prompts",
    help="""
Add, change and see stored prompts.

Try:
    antiphon prompts add greeter.toml --id pmpt_greeter
    antiphon prompts list
""",
)

TenantFlag = Annotated[str | None, Parameter(name="--tenant", help="the tenant of the prompt; needed where several have one with that id.")]
PromptFile = Annotated[Path, Parameter(help="a TOML or JSON file with the content; the text of any other file becomes the instructions.")]

CONFIGURATION = "the configuration"

ResultT = TypeVar("ResultT")


class _Prompt(msgspec.Struct, frozen=True):
    """A prompt from the store or, without a record, from the configuration; `versions` are in order."""

    id: str
    record: PromptRecord | None
    default_version: int
    versions: Sequence[PromptVersionRecord]


@app.command
def add(
    source: PromptFile,
    *,
    id: str | None = None,
    tenant: str | None = None,
    as_json: JsonFlag = False,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Add a prompt, and print its id.

    A running server has it at once.

    Try:
        antiphon prompts add greeter.toml
        antiphon prompts add greeter.md --id pmpt_greeter --tenant ada

    Args:
        id: an id that begins with pmpt_; by default a random one.
        tenant: whose requests may use it; by default `default`, or as long as there are no keys, all requests.
    """
    prompt_id = id if id is not None else new_id(PROMPT_PREFIX.removesuffix("_"))
    if not PROMPT_ID.fullmatch(prompt_id):
        raise UsageError(f"--id takes {PROMPT_PREFIX} and up to 64 letters, digits, - and _; got '{prompt_id}'.")
    body = _read(shell, source)
    config = settings.load(shell, file).config

    async def work(store: Store) -> PromptRecord | None:
        owner = tenant if tenant is not None else "default" if await store.keys.all() else ""
        record = PromptRecord(id=prompt_id, tenant=owner, created_at=int(time.time()))
        return record if await store.prompts.add(record, body) else None

    record = _with_store(config, work)
    if record is None:
        raise UsageError(f"There is a prompt '{prompt_id}' already; `antiphon prompts update` adds a version to it.")
    if as_json:
        return shell.say_json(asdict(record))
    shell.say(prompt_id)
    return shell.note(f"version 1 is added for {_describe_tenant(record.tenant)} in the store {settings.store_location(config)}")


@app.command
def update(
    which: str,
    source: PromptFile,
    *,
    keep_default: bool = False,
    tenant: TenantFlag = None,
    as_json: JsonFlag = False,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Add a version to a prompt.

    Versions never change, so requests that name one go on as before. The
    others get the new one at once.

    Try:
        antiphon prompts update pmpt_greeter greeter.toml
        antiphon prompts update pmpt_greeter greeter.toml --keep-default

    Args:
        which: the id of the prompt.
        keep_default: requests that name no version still get the one that they get now.
    """
    body = _read(shell, source)
    config = settings.load(shell, file).config

    async def work(store: Store) -> PromptRecord:
        record = await _find(config, store.prompts, which, tenant)
        await store.prompts.add_version(record.tenant, which, body, at=int(time.time()), is_default=not keep_default)
        return await _find(config, store.prompts, which, record.tenant)

    record = _with_store(config, work)
    if as_json:
        return shell.say_json(asdict(record))
    default = "" if record.default_version == record.latest_version else f"; version {record.default_version} stays the default"
    return shell.say(f"{which} has version {record.latest_version} now{default}")


@app.command(name="list")
def list_(*, tenant: str | None = None, as_json: JsonFlag = False, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the prompts in the store and in the configuration.

    Try:
        antiphon prompts list

    Args:
        tenant: only those that this tenant can use.
    """
    config = settings.load(shell, file).config
    records = [] if config.database_url is None else _with_store(config, lambda store: store.prompts.find(tenant))
    config_prompts = _config_prompts(config)
    if as_json:
        return shell.say_json([*map(asdict, records), *({"id": each.id, **_default_of(each)} for each in config_prompts)])
    if not records and not config_prompts:
        return shell.note(f"there are no prompts in the store {settings.store_location(config)}; add one with `antiphon prompts add`")
    rows = [
        (each.id, each.tenant or "-", str(each.latest_version), str(each.default_version), format_time(each.created_at)) for each in records
    ]
    rows += [(each.id, f"all, by {CONFIGURATION}", str(len(each.versions)), str(each.default_version), "-") for each in config_prompts]
    return shell.say_rows([("ID", "TENANT", "VERSIONS", "DEFAULT", "CREATED (UTC)"), *rows])


@app.command
def show(
    which: str,
    *,
    version: int | None = None,
    tenant: TenantFlag = None,
    as_json: JsonFlag = False,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Show a version of a prompt.

    Try:
        antiphon prompts show pmpt_greeter
        antiphon prompts show pmpt_greeter --version 1 --json

    Args:
        which: the id of the prompt.
        version: its number; by default the version for requests that name none.
    """
    prompt = _load(settings.load(shell, file).config, which, tenant)
    number = prompt.default_version if version is None else version
    record = next((each for each in prompt.versions if each.version == number), None)
    if record is None:
        raise UsageError(f"'{which}' has no version {number}; it has {', '.join(str(each.version) for each in prompt.versions)}.")
    content: JsonDict = msgspec.json.decode(record.body)
    variables = _variables(record.body)
    owner = {} if prompt.record is None else {"tenant": prompt.record.tenant, "created_at": record.created_at}
    if as_json:
        fields = {"id": which, "version": number, "default_version": prompt.default_version, "variables": variables, **owner}
        return shell.say_json(fields | {"content": content})
    facts = {
        "version": f"{number} (the default)" if number == prompt.default_version else f"{number}; the default is {prompt.default_version}",
        "tenant": f"all, by {CONFIGURATION}" if prompt.record is None else prompt.record.tenant or "-",
        **({} if prompt.record is None else {"created": f"{format_time(record.created_at)} UTC"}),
        "variables": ", ".join(_describe_variable(name, content) for name in variables) or "-",
    }
    options = {name: value for name, value in content.items() if name not in ("instructions", "messages", "variables")}
    facts |= {name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in options.items()}
    shell.say_rows([*facts.items()])
    texts = [("instructions", content["instructions"])] if content.get("instructions") else []
    for heading, text in (*texts, *((each["role"], _text(each["content"])) for each in content.get("messages", ()))):
        shell.say_rows([("",), (f"{heading}:",), *((f"  {line}",) for line in text.splitlines())])
    return None


@app.command
def versions(which: str, *, tenant: TenantFlag = None, as_json: JsonFlag = False, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the versions of a prompt.

    Try:
        antiphon prompts versions pmpt_greeter

    Args:
        which: the id of the prompt.
    """
    prompt = _load(settings.load(shell, file).config, which, tenant)
    rows = [
        (each.version, each.version == prompt.default_version, each.created_at if prompt.record else None, _variables(each.body))
        for each in prompt.versions
    ]
    if as_json:
        return shell.say_json([dict(zip(("version", "is_default", "created_at", "variables"), row, strict=True)) for row in rows])
    cells = [
        (str(number), "yes" if is_default else "-", format_time(created_at), ", ".join(variables) or "-")
        for number, is_default, created_at, variables in rows
    ]
    return shell.say_rows([("VERSION", "DEFAULT", "CREATED (UTC)", "VARIABLES"), *cells])


@app.command
def set_default(which: str, version: int, *, tenant: TenantFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Set which version requests get that name none.

    Try:
        antiphon prompts set-default pmpt_greeter 1

    Args:
        which: the id of the prompt.
        version: its number.
    """
    config = settings.load(shell, file).config

    async def work(store: Store) -> None:
        record = await _find(config, store.prompts, which, tenant)
        if not await store.prompts.set_default(record.tenant, which, version):
            raise UsageError(f"'{which}' has no version {version}; `antiphon prompts versions {which}` lists them.")

    _with_store(config, work)
    shell.say(f"version {version} is the default of {which}")


@app.command(usage="Usage: antiphon prompts delete [OPTIONS] WHICH...")
def delete(*which: str, tenant: TenantFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Delete prompts with all their versions.

    Requests that name one are refused from then on. Responses that were made
    with it stay as they are.

    Try:
        antiphon prompts delete pmpt_greeter

    Args:
        which: the ids of the prompts.
    """
    if not which:
        raise UsageError("Name at least one prompt; `antiphon prompts list` shows them.")
    config = settings.load(shell, file).config

    async def work(store: Store) -> None:
        for record in [await _find(config, store.prompts, each, tenant) for each in which]:
            await store.prompts.delete(record.tenant, record.id)

    _with_store(config, work)
    for each in which:
        shell.say(f"{each} is deleted")


# Prompts


def _read(shell: Shell, source: Path) -> bytes:
    """The content in a file, as JSON."""
    try:
        text = (shell.cwd / source).read_text(encoding="utf-8")
        match source.suffix.lower():
            case ".toml":
                content = tomllib.loads(text)
            case ".json":
                content = msgspec.json.decode(text, type=dict[str, object])
            case _:
                content = {"instructions": text.strip()}
        return lazy.prompts.encode_content(content)[0]
    except FileNotFoundError:
        raise UsageError(f"{source}: there is no such file.") from None
    except OSError as error:
        raise UsageError(f"{source}: can't be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{source}: is not UTF-8 text.") from None
    except (tomllib.TOMLDecodeError, msgspec.DecodeError) as error:
        raise UsageError(f"{source}: is not valid: {error}.") from None
    except ApiError as error:
        raise UsageError(f"{source}: {error.message}") from None


async def _find(config: Config, prompts: PromptStore, which: str, tenant: str | None) -> PromptRecord:
    """The one prompt in the store with that id."""
    records = await prompts.find(tenant, which)
    if len(records) > 1:
        tenants = ", ".join(f"'{record.tenant}'" for record in records)
        raise UsageError(f"More than one tenant has a prompt '{which}'; name one of them with --tenant: {tenants}.")
    if records:
        return records[0]
    if any(entry.id == which for entry in config.prompts):
        raise UsageError(f"'{which}' is in the configuration; change it there.")
    raise UsageError(f"There is no prompt '{which}'; `antiphon prompts list` shows them.")


def _load(config: Config, which: str, tenant: str | None) -> _Prompt:
    """The one prompt with that id, in the store or else in the configuration."""
    config_prompt = next((each for each in _config_prompts(config) if each.id == which), None)
    if config.database_url is None and config_prompt is not None:
        return config_prompt

    async def work(store: Store) -> _Prompt:
        if config_prompt is not None and not await store.prompts.find(tenant, which):
            return config_prompt
        record = await _find(config, store.prompts, which, tenant)
        return _Prompt(which, record, record.default_version, await store.prompts.versions(record.tenant, which))

    return _with_store(config, work)


def _config_prompts(config: Config) -> Sequence[_Prompt]:
    checks.raise_usage_error(checks.prompt_problems(config))
    defaults = lazy.prompts.default_versions(config.prompts)
    versions: dict[str, list[PromptVersionRecord]] = {}
    for entry in sorted(config.prompts, key=lambda entry: entry.version):
        record = PromptVersionRecord(version=entry.version, created_at=0, body=lazy.prompts.configured_version(entry).body)
        versions.setdefault(entry.id, []).append(record)
    return [_Prompt(id, None, defaults[id], each) for id, each in versions.items()]


def _with_store(config: Config, work: Callable[[Store], Awaitable[ResultT]]) -> ResultT:
    return settings.with_store(config, "Stored prompts", work)


# Formatting


def _default_of(prompt: _Prompt) -> dict[str, object]:
    """As `asdict` of a prompt of the configuration, which is every tenant's."""
    return {"tenant": None, "created_at": None, "default_version": prompt.default_version, "latest_version": prompt.versions[-1].version}


def _variables(body: bytes) -> list[str]:
    return lazy.prompts.list_variables(body)


def _describe_variable(name: str, content: JsonDict) -> str:
    default = content.get("variables", {}).get(name)
    return name if default is None else f"{name} = {msgspec.json.encode(default).decode()}"


def _describe_tenant(tenant: str) -> str:
    return f"tenant '{tenant}'" if tenant else "requests without a key"


def _text(content: str | list[JsonDict]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or f"[{part['type']}]" for part in content)
