"""`antiphon worker`."""

import socket
import tomllib
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from cyclopts import Parameter

from antiphon.cli.common import settings
from antiphon.cli.common.flags import ConfigFlag, ShellParameter
from antiphon.cli.common.shell import UsageError
from antiphon.errors import quote_list

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
    Answer for a server on another machine, or in another process of this one.

    The worker dials in, so that nothing needs to reach it. It joins with the key
    in ANTIPHON_WORKER_KEY, or in the file that ANTIPHON_WORKER_KEY_FILE names,
    which must be the server's too; and joins again when the link is lost. Ctrl-C
    or SIGTERM stops it when the sessions under way are over; a second one at once.

    Try:
        antiphon worker --join ws://gateway:8642 --engine scripted --model parrot

    Args:
        join: address of the server, ws:// or wss://.
        engine: what answers, as in a model's table of the configuration.
        model: name that the server has the model by; the option `model` unless given.
        slots: sessions at the same time; as many as the engine says unless given.
        kind: a kind of conversation to take, of responses, realtime, chat, audio and video; may be repeated; all unless given.
        option: an option of the engine, as key=value; may be repeated.
        name: what the operator of the server sees the worker by; this machine's unless given.
        speech: put ears and a voice around the engine here, by [speech] of this machine's configuration, and not in the server.
        drain_s: seconds that sessions under way get when it is to stop; `server.drain_s` unless given.
        exit_when_drained: end when the server's operator has drained it and no session is left; else it stays joined, and idle.
        key_env: variable with the key; ANTIPHON_WORKER_KEY unless given.
    """
    url, kinds = _parse_url(join), _parse_kinds(kind or ())
    if engine == "worker":
        raise UsageError("--engine takes an engine that answers itself; 'worker' stands for those that join, and this is one.")
    options = dict(map(_parse_option, option or ()))
    named = model or str(options.get("model", ""))
    if not named:
        raise UsageError("--model says which of the server's models this is to answer for.")
    if slots is not None and slots < 1:
        raise UsageError(f"--slots takes 1 or more; got {slots}.")
    if drain_s is not None and not 0 <= drain_s < float("inf"):
        raise UsageError(f"--drain-s takes seconds, 0 or more; got {drain_s:g}.")
    entry = {"name": named, "engine": engine, **options}
    config = settings.load(shell, file, {"workers.key_env": key_env, "models": [entry]}).config
    key = config.secrets.get(config.workers.key_env, "").strip()
    if not key:
        raise UsageError(f"A worker joins with the key that its server has, and the variable {config.workers.key_env} has none.")
    from antiphon.runtime.workers.client import WorkerOptions, serve  # noqa: PLC0415 - engines take a while to load; `--help` should not wait for them

    means = WorkerOptions(
        kinds=kinds,
        slots=slots,
        name=name or socket.gethostname(),
        adds_speech=speech,
        exits_when_drained=exit_when_drained,
        drain_s=config.server.drain_s if drain_s is None else drain_s,
    )
    serve(config, url=url, key=key, options=means, notice=shell.note)


def _parse_option(text: str) -> tuple[str, Any]:
    """An option and its value, which is written as in the configuration, or plain."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--option takes key=value; got '{text}'.")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _parse_url(join: str) -> str:
    """The server's address, without a path."""
    parts = urlsplit(join)
    schemes = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
    if parts.scheme not in schemes or not parts.netloc or parts.path.strip("/") or parts.query:
        raise UsageError(f"--join takes an address such as ws://gateway:8642 or wss://gateway.example.com, without a path; got '{join}'.")
    return f"{schemes[parts.scheme]}://{parts.netloc}"


def _parse_kinds(names: Sequence[str]) -> tuple[str, ...]:
    """The kinds of conversation that are taken."""
    if unknown := [kind for kind in names if kind not in _KINDS]:
        raise UsageError(f"There is no kind {quote_list(unknown)}; there are {quote_list(_KINDS)}.")
    return tuple(kind for kind in _KINDS if not names or kind in names)
