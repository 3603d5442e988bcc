"""`antiphon serve`."""

import json
from typing import TYPE_CHECKING

from antiphon import __version__
from antiphon.cli import fetching, settings
from antiphon.cli.flags import Around, ConfigFile
from antiphon.cli.shell import aligned

if TYPE_CHECKING:
    from antiphon.config import Config

_QUESTION = "What is a fugue?"


def serve(
    *,
    file: ConfigFile = None,
    host: str | None = None,
    port: int | None = None,
    processes: int | None = None,
    shell: Around,
) -> None:
    """
    Serve the models configured, or the default one.

    Where none is configured, the default model is fetched, checked, and served
    from this machine; so are ears and a voice, to talk to it, where the extra
    `speech` is installed. Ctrl-C stops the server: answers under way are
    finished first, unless Ctrl-C is pressed again.

    Try:
        antiphon serve
        antiphon serve --config antiphon.toml --port 9000

    Args:
        host: address to listen on; 127.0.0.1 unless configured.
        port: port to listen on; 8642 unless configured, 0 takes any free one.
        processes: how many share the work; 1 unless configured.
    """
    loaded = settings.load(shell, file, {"server.host": host, "server.port": port, "server.processes": processes})
    config = fetching.with_voice(loaded.config, shell)
    if config.server.processes > 1:
        from antiphon.server.supervisor import serve as run  # noqa: PLC0415 - as below; it loads no server itself
    else:
        from antiphon.server.run import serve as run  # noqa: PLC0415 - the server takes a second to load; `--help` should not wait for it
    run(config, ready=lambda base_url, is_open: shell.say(greeting(config, base_url, shell.name, is_open=is_open)), notice=shell.note)


def _kept(config: "Config") -> str:
    """Where responses are kept, as far as it may be shown."""
    if config.database_url is None:
        return "in memory, until it stops"
    return settings.masked(config.database_url).removeprefix("sqlite:///")


def _speech(config: "Config") -> str:
    """What hears and speaks for models that only read and write, or how to get it."""
    from antiphon.runtime import speech  # noqa: PLC0415 - as the server, which it is part of

    lack = speech.missing(config.speech, config.models_dir)
    if lack is None:
        return f"{config.speech.ears} hears, {config.speech.voice} speaks"
    return f"none: {lack.removesuffix('.')}"


def _open_to(config: "Config", program: str, *, is_open: bool) -> str:
    """Who may use it."""
    if not is_open:
        return f"whoever has a key; `{program} keys list` shows them"
    if config.database_url is None or config.server.require_keys is False:
        return "this machine only, and needs no key"
    return f"this machine only, and needs no key until you make one with `{program} keys create`"


def greeting(config: "Config", base_url: str, program: str, *, is_open: bool) -> str:
    """What is said once the server answers: where it is, what it has, and what to try next."""
    model = config.models[0].name
    body = json.dumps({"model": model, "input": _QUESTION})
    address = "" if base_url == "http://127.0.0.1:8642" else f" --url {base_url}/v1"
    facts = [
        ("models", ", ".join(entry.name for entry in config.models)),
        ("responses", _kept(config)),
        ("weights", str(config.models_dir)),
        ("speech", _speech(config)),
        ("open to", _open_to(config, program, is_open=is_open)),
    ]
    key, header = ("none", "") if is_open else ("YOUR_KEY", " -H 'Authorization: Bearer YOUR_KEY'")
    typed = program if is_open else f"ANTIPHON_API_KEY=YOUR_KEY {program}"
    return "\n".join(
        [
            f"antiphon {__version__} answers at {base_url}",
            *(f"  {line}" for line in aligned(facts)),
            "",
            "Try, in another terminal:",
            "",
            f'  {typed} ask "{_QUESTION}"{address}',
            f"  {typed} talk question.wav{address}",
            "",
            f"  curl {base_url}/v1/responses{header} -H 'Content-Type: application/json' -d '{body}'",
            "",
            "or from Python, with the openai package:",
            "",
            "  from openai import OpenAI",
            f'  client = OpenAI(base_url="{base_url}/v1", api_key="{key}")',
            f'  print(client.responses.create(model="{model}", input="{_QUESTION}").output_text)',
            "",
            "Ctrl-C stops it.",
        ]
    )
