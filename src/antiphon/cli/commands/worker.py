"""`antiphon worker`."""

import socket
import tomllib
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from antiphon.cli.common import checks, log, settings
from antiphon.cli.common.flags import ConfigFlag, ShellParameter
from antiphon.cli.common.shell import UsageError
from antiphon.errors import quote_list
from antiphon.masking import mask_address
from antiphon.runtime.workers.client import WorkerOptions, serve

_KINDS = ("responses", "realtime", "chat", "audio", "video")
_Repeatable = Annotated[list[str] | None, Parameter(consume_multiple=False)]


def worker(
    *,
    join: str,
    engine: str,
    model: str | None = None,
    slots: int | None = None,
    kind: _Repeatable = None,
    option: _Repeatable = None,
    name: str | None = None,
    speech: bool = False,
    drain_s: float | None = None,
    exit_when_drained: bool = False,
    key_env: str | None = None,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Run an engine for a server in another process or on another machine.

    The worker connects to the server, so nothing needs to reach the worker. It
    uses the key in ANTIPHON_WORKER_KEY, or in the file that
    ANTIPHON_WORKER_KEY_FILE names; the server must have the same key. If the
    connection breaks, the worker joins again. Ctrl-C or SIGTERM stops it after
    the sessions under way; a second one stops it at once.

    Try:
        antiphon worker --join ws://gateway:8642 --engine scripted --model parrot

    Args:
        join: address of the server, ws:// or wss://.
        engine: the engine to run, by its name in the configuration, such as `local`.
        model: the model's name on the server; by default the option `model`.
        slots: how many sessions to run at the same time; by default as many as the engine says.
        kind: a kind of session to accept: responses, realtime, chat, audio or video; may be repeated; by default all.
        option: an option of the engine, as key=value; may be repeated.
        name: the address that `antiphon workers list` shows for it; by default this machine's name.
        speech: add speech recognition and a voice to the engine here, from this machine's [speech], not in the server.
        drain_s: how many seconds sessions get to finish when the worker stops; by default `server.drain_s`.
        exit_when_drained: after `antiphon workers drain` and the last session, exit; by default stay connected, idle.
        key_env: the variable with the key; by default ANTIPHON_WORKER_KEY.
    """
    url, kinds = _parse_url(join), _parse_kinds(kind or ())
    if engine == "worker":
        raise UsageError("--engine can't be 'worker': that one stands for workers in the server's configuration.")
    options = dict(map(_parse_option, option or ()))
    model_name = model or str(options.get("model", ""))
    if not model_name:
        raise UsageError("Name the model with --model, as the server's configuration does.")
    if slots is not None and slots < 1:
        raise UsageError(f"--slots takes 1 or more; got {slots}.")
    if drain_s is not None and not 0 <= drain_s < float("inf"):
        raise UsageError(f"--drain-s takes seconds, 0 or more; got {drain_s:g}.")
    entry = {"name": model_name, "engine": engine, **options}
    config = settings.load(shell, file, {"workers.key_env": key_env, "models": [entry]}).config
    key = config.secrets.get(config.workers.key_env, "").strip()
    if not key:
        raise UsageError(f"A worker needs the server's key, and the variable {config.workers.key_env} is empty.")
    worker_options = WorkerOptions(
        kinds=kinds,
        slots=slots,
        name=name or socket.gethostname(),
        adds_speech=speech,
        exits_when_drained=exit_when_drained,
        drain_s=config.server.drain_s if drain_s is None else drain_s,
    )
    checks.check_models(config)
    notice = log.own_log(config, shell)
    with log.log_failure(config, shell):
        serve(config, url=url, key=key, options=worker_options, notice=notice, report=log.own_report(config, shell))


def _parse_option(text: str) -> tuple[str, object]:
    """An option's name and value; the value is TOML, or else plain text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--option takes key=value; got '{text}'.")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _parse_url(join: str) -> str:
    parts = urlsplit(join)
    schemes = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
    if parts.scheme not in schemes or not parts.netloc or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(
            "--join takes an address such as ws://gateway:8642 or wss://gateway.example.com, without a path, a name or a password; "
            f"got '{mask_address(join)}'."
        )
    return f"{schemes[parts.scheme]}://{parts.netloc}"


def _parse_kinds(names: Sequence[str]) -> tuple[str, ...]:
    if unknown := [kind for kind in names if kind not in _KINDS]:
        raise UsageError(f"There is no kind {quote_list(unknown)}; there are {quote_list(_KINDS)}.")
    return tuple(kind for kind in _KINDS if not names or kind in names)
