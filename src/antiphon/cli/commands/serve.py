"""`antiphon serve`."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from antiphon import __version__, errors
from antiphon.cli.common import checks, lazy, log, settings, upstreams, weights
from antiphon.cli.common.flags import ConfigFlag, ShellParameter
from antiphon.cli.common.shell import Shell, align_columns
from antiphon.cli.common.upstreams import LISTING_ENGINES
from antiphon.config import load as config_files
from antiphon.config.load import Config, ModelEntry, with_secrets
from antiphon.runtime.access.keys import KeyAccess
from antiphon.runtime.speech import service
from antiphon.weights.watch import FetchWatch

_QUESTION = "What is a fugue?"

MAX_ADDRESSES = 6
"""The most addresses for other machines that are printed: a machine with containers has dozens."""


def serve(
    *,
    file: ConfigFlag = None,
    host: str | None = None,
    port: int | None = None,
    processes: int | None = None,
    tls: Literal["auto", "off"] | None = None,
    no_console: bool = False,
    shell: ShellParameter,
) -> None:
    """
    Serve the configured models, or the default one.

    If none is configured, it fetches, checks and runs the default model on this
    machine, one that makes vectors of texts, and with the extra `speech` also
    the models to talk to it. Ctrl-C stops the server after the answers under
    way; a second Ctrl-C stops it at once.

    Try:
        antiphon serve
        antiphon serve --config antiphon.toml --port 9000
        antiphon serve --tls auto --host 0.0.0.0

    Args:
        host: address to listen on; by default as configured, or 127.0.0.1.
        port: port to listen on; by default as configured, or 8642; 0 takes a free one.
        processes: how many processes share the work; by default as configured, or 1.
        tls: auto for HTTPS, with certificates that the server makes: browsers on other machines give no microphone
            without it; by default as configured, or off.
        no_console: leave out the page for browsers.
    """
    flags: dict[str, object] = {"server.host": host, "server.port": port, "server.processes": processes, "server.tls": tls}
    flags["server.console"] = False if no_console else None
    loaded_config = settings.load(shell, file, flags)
    is_alone = loaded_config.config.server.processes == 1
    # Several processes each check the store themselves: the one that starts them should load no database driver.
    checks.raise_usage_error(checks.store_problems(loaded_config.config) if is_alone else checks.process_problems(loaded_config.config))
    checks.raise_usage_error(checks.webhook_problems(loaded_config.config))
    notice = log.own_log(loaded_config.config, shell)
    with log.log_failure(loaded_config.config, shell):
        config = loaded_config.config
        served_config = config

        def prepare(watch: FetchWatch) -> Config:
            nonlocal served_config
            served_config = weights.with_optional_models(config, shell, watch)
            return served_config

        with upstreams.note_unreachable(config, lambda note: notice(f"{note}; its models work as soon as it answers")):
            on_ready = lambda base_url, access: shell.say(greeting(served_config, base_url, shell.name, access))  # noqa: E731
            load = lambda: _load_again(served_config, file, flags, shell)  # noqa: E731
            on_open = lambda base_url: shell.say(_opening(config, base_url))  # noqa: E731
            # The supervisor must not load the server, which only its processes need.
            run = lazy.run.serve if is_alone else lazy.supervisor.serve
            run(config, on_ready=on_ready, notice=notice, load=load, prepare=prepare, on_open=on_open)


def _opening(config: Config, base_url: str) -> str:
    """What is said before weights are fetched, which may take minutes."""
    page = "/ - open it in a browser to see how far it is" if config.server.console else ""
    return "\n".join([f"antiphon {__version__} is starting at {_local_url(base_url)}{page}", *_describe_tls(config, base_url)])


def _describe_tls(config: Config, base_url: str) -> list[str]:
    """Where other machines find a server with TLS, and which authority they must trust for it."""
    certificates = None if config.server.tls == "off" else lazy.certificates.read_certificates(config)
    if certificates is None:
        return []
    port = base_url.rpartition(":")[2]
    hosts = lazy.addresses.outer_addresses(config.server)
    local_names = [name for name in lazy.names.machine_names() if name.endswith(".local") and hosts]
    places = [f"https://{host}:{port}" for host in (*hosts, *local_names, *_plain_names(config))][:MAX_ADDRESSES]
    digits = certificates.fingerprint
    half = len(digits) // 2 + 1
    facts = [("elsewhere", place) for place in places[:1]] + [("", place) for place in places[1:]]
    facts += [("authority", str(config.ca_file)), ("", f"{places[0] if places else _local_url(base_url)}/ca.crt")]
    facts += [("SHA-256", digits[:half]), ("", digits[half:])]
    return [
        "",
        "HTTPS with certificates of this server's own authority. Every machine from which it is used must",
        "trust that once: fetch it there, compare the fingerprint, install it as the certificate of an",
        "authority (docs/guide/https.md has a line for each system), and start the browser again.",
        "",
        *(f"  {line}" for line in align_columns(facts)),
        *(f"  not named  {', '.join(certificates.left_out)}" for _ in certificates.left_out[:1]),
    ]


def _plain_names(config: Config) -> list[str]:
    """The names that clients may use, as the operator gave them."""
    return [name for name in config.server.allowed_hosts if "*" not in name]


def _load_again(running_config: Config, file: Path | None, flags: Mapping[str, object], shell: Shell) -> Config:
    """
    The configuration, read again. Where it names no models, those that are served stay.

    Raises:
        ConfigError: there is a mistake in it.
    """
    config = config_files.load(flags, file, shell.environ, shell.cwd).config
    return config if config.models else with_secrets(config.model_copy(update={"models": running_config.models}), config.secrets)


def _speech_problem(config: Config, program: str) -> str | None:
    """Why text models can't hear and speak, and what to do; None if they can."""
    if config.speech.enabled is False or service.missing_modules(config.speech):
        return f"none: {(service.missing_reason(config.speech, config.models_dir) or '').removesuffix('.')}"
    for names, problem in (
        (checks.missing_speech_models(config), "not fetched"),
        (checks.altered_speech_models(config), "altered since they were fetched"),
    ):
        if names:
            return f"none: weights {problem}; run `{checks.pull_command(names, program)}`"
    return None


def _describe_access(config: Config, program: str, access: KeyAccess) -> str:
    """Who may use the server."""
    if not access.is_open and not access.has_live_key:
        return f"nobody: no key is valid; `{program} keys create` makes one, or set {settings.NO_KEYS_SETTING}"
    if not access.is_open:
        return f"everyone with a key; `{program} keys list` shows the keys"
    if config.database_url is None or config.server.require_keys is False:
        return "this machine only; no key needed"
    return f"this machine only; no key needed until `{program} keys create`"


def greeting(config: Config, base_url: str, program: str, access: KeyAccess) -> str:
    """The text printed once the server answers: where it is, what it has, and what to try next."""
    speech_problem = _speech_problem(config, program)
    facts = [
        ("models", ", ".join(map(_describe_model, config.models))),
        *((("routes", ", ".join(route.name for route in config.routing)),) if config.routing else ()),
        ("responses", settings.store_location(config)),
        ("weights", str(config.models_dir)),
        ("speech", speech_problem or f"{config.speech.stt} transcribes, {config.speech.voice} speaks"),
        ("open to", _describe_access(config, program, access)),
        *((("page", f"{_local_url(base_url)}/"),) if config.server.console else ()),
        ("API", f"{_local_url(base_url)}/docs"),
    ]
    can_talk = speech_problem is None or any(entry.engine not in weights.SILENT_ENGINES for entry in config.models)
    return "\n".join(
        [
            f"antiphon {__version__} answers at {base_url}",
            *(f"  {line}" for line in align_columns(facts)),
            *_describe_tls(config, base_url),
            "",
            "Try, in another terminal:",
            "",
            *_example_commands(config, _local_url(base_url), program, is_open=access.is_open, can_talk=can_talk),
            "",
            "Ctrl-C stops it.",
        ]
    )


def _local_url(base_url: str) -> str:
    """The address for programs on this machine, where the server listens on every interface."""
    return base_url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _describe_model(model: ModelEntry) -> str:
    """The model's name, or which names it answers to."""
    if not model.name.endswith("*"):
        return model.name
    return errors.describe_model_name(model.name, is_listed=model.engine in LISTING_ENGINES)


def _example_model(models: Sequence[ModelEntry]) -> tuple[str, bool]:
    """The name of a model to try, and whether a command must name it: by default it takes the first that is listed."""
    answering_models = [model for model in models if model.engine != "embeddings"] or models
    for model in answering_models:
        if not model.name.endswith("*"):
            return model.name, False
    # What an upstream server has is not known here.
    first = answering_models[0]
    return ("YOUR_MODEL" if first.engine in LISTING_ENGINES else errors.example_model_name(first.name)), True


def _example_commands(config: Config, base_url: str, program: str, *, is_open: bool, can_talk: bool) -> list[str]:
    """Commands and a program to copy; not indented, as a Python prompt takes no indented line."""
    model, is_needed = _example_model(config.models)
    is_tls = base_url.startswith("https:")
    address = (f" --model {model}" if is_needed else "") + (
        "" if base_url in ("http://127.0.0.1:8642", "https://127.0.0.1:8642") else f" --url {base_url}/v1"
    )
    key = "none" if is_open else "YOUR_KEY"
    command = program if is_open else f"ANTIPHON_API_KEY=YOUR_KEY {program}"
    return [
        f'{command} ask "{_QUESTION}"{address}',
        *([f"{command} talk --sample{address}"] if can_talk else ()),
        "",
        *([f"export SSL_CERT_FILE={shlex.quote(str(config.ca_file))}"] if is_tls else ()),
        f"curl {base_url}/v1/responses \\",
        *(() if is_open else ("  -H 'Authorization: Bearer YOUR_KEY' \\",)),
        "  -H 'Content-Type: application/json' \\",
        f"  -d '{json.dumps({'model': model, 'input': _QUESTION})}'",
        "",
        "or from Python, with the openai package:",
        "",
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{base_url}/v1", api_key="{key}")',
        f'answer = client.responses.create(model="{model}", input="{_QUESTION}")',
        "print(answer.output_text)",
    ]
