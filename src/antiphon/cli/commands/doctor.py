"""`antiphon doctor`."""

import asyncio
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Set
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.cli.common import checks, lazy, settings, upstreams
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter
from antiphon.cli.common.server import configured_client
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.cli.common.weights import weights_name
from antiphon.config.load import Config
from antiphon.config.routing import EMBEDDING_MODEL
from antiphon.errors import ServerError
from antiphon.installation import install_hint
from antiphon.masking import mask_password
from antiphon.stores.blobs import BlobStore
from antiphon.weights import catalogue, fetch
from antiphon.weights.catalogue import CatalogueModel

_MARKS = {"ok": "ok", "note": "note", "missing": "MISSING", "fail": "FAIL"}


class Finding(Struct, frozen=True):
    """
    The result of one check.

    Attributes:
        state: `missing` stops the server; with `fail` it serves, but not what this is about; `note` harms nothing.
        remedy: what to do; empty if nothing.
    """

    subject: str
    state: Literal["ok", "note", "missing", "fail"]
    detail: str
    remedy: str = ""


def doctor(
    *,
    file: ConfigFlag = None,
    as_json: JsonFlag = False,
    shell: ShellParameter,
) -> int:
    """
    Check what is missing here, and how to get it.

    The exit code is 1 if something is missing that the server needs, or a model
    server can't be reached.

    Try:
        antiphon doctor
        antiphon doctor --json
    """
    findings = list(_run_checks(shell, file))
    if as_json:
        shell.say_json(findings)
    else:
        shell.say_rows([(_MARKS[finding.state], finding.subject, _format_finding(finding)) for finding in findings])
    return int(any(finding.state in ("missing", "fail") for finding in findings))


def _format_finding(finding: Finding) -> str:
    return f"{finding.detail} - {finding.remedy}" if finding.remedy else finding.detail


def _run_checks(shell: Shell, file: Path | None) -> Iterator[Finding]:
    yield check_python()
    yield check_packages()
    try:
        config = settings.load(shell, file).config
    except UsageError as error:
        yield Finding("configuration", "missing", "; ".join(error.message.splitlines()), "see antiphon config check")
        return
    yield Finding("configuration", "ok", "valid")
    yield from check_models(config)
    yield from check_routing(config)
    yield from check_upstreams(config)
    yield check_local_runtime(config)
    yield check_weights(config)
    yield check_speech(config)
    yield check_folder("data folder", config.home)
    yield check_folder("weights folder", config.models_dir)
    yield check_store(config)
    yield check_recordings(config)
    yield check_tls(config)
    yield check_port(shell, config)


def check_python() -> Finding:
    """Which Python this is."""
    return Finding("python", "ok", f"{platform.python_implementation()} {platform.python_version()} in {sys.prefix}")


def check_packages() -> Finding:
    """Whether the required packages are installed."""
    if not _package_version("antiphon"):
        return Finding("packages", "note", "antiphon runs from its sources, not installed", _remedy())
    names = _required_packages(extra=None)
    absent = [name for name in names if not _package_version(name)]
    if absent:
        return Finding("packages", "missing", f"not installed: {', '.join(absent)}", _remedy())
    return Finding("packages", "ok", f"all {len(names)} installed")


def check_models(config: Config) -> Iterator[Finding]:
    """Whether the models can be served as configured."""
    notices: list[str] = []
    if problems := list(checks.model_problems(config, notices.append)):
        yield from (Finding("models", "missing", problem.removesuffix("."), "see the reference of its engine") for problem in problems)
    else:
        names = ", ".join(model.name for model in config.models)
        yield Finding("models", "ok", names or "none configured, so the default one is served")
    yield from (Finding("models", "note", notice.removesuffix(".")) for notice in notices)


def check_routing(config: Config) -> Iterator[Finding]:
    """Whether the routes and rewrites fit the models."""
    if problems := list(checks.route_problems(config)):
        yield from (Finding("routing", "missing", problem.removesuffix("."), "correct it in the configuration") for problem in problems)
    elif config.routing:
        yield Finding("routing", "ok", ", ".join(route.name for route in config.routing))


def check_upstreams(config: Config) -> Iterator[Finding]:
    """Whether the servers behind the models can be reached."""
    for upstream in upstreams.check_upstreams(config):
        place = f"{upstream.models} at {upstream.address}"
        if upstream.problem is None:
            yield Finding("upstream", "ok", f"{place}: it listens")
        else:
            yield Finding("upstream", "fail", f"{place}: {upstream.problem}", "start it, or correct base_url")


def check_local_runtime(config: Config) -> Finding:
    """Whether the packages that run local models are installed."""
    names = _required_packages(extra="local")
    if not names:
        return Finding("local models", "note", "unknown, as antiphon is not installed", _remedy("local"))
    absent = [name for name in names if not _package_version(name)]
    if not absent:
        return Finding("local models", "ok", "their runtime is installed")
    is_required = not config.models or any(model.engine == "local" for model in config.models)
    return Finding(
        "local models",
        "missing" if is_required else "note",
        f"not installed: {', '.join(absent)}",
        _remedy("local"),
    )


def check_weights(config: Config) -> Finding:
    """The catalogue weights of the configured models, or of the default one."""
    installed_names = {model.name for model in fetch.installed_models(config.models_dir) if model.is_complete}
    models = _required_models(config, installed_names)
    absent = [model for model in models if model.name not in installed_names]
    if not absent:
        return Finding("weights", "ok", ", ".join(model.name for model in models) or "none needed from the catalogue")
    names, size_mb = " ".join(model.name for model in absent), sum(model.size_bytes for model in absent) // 1_000_000
    detail = f"{names} will be fetched when first served: {size_mb} MB"
    if _free_mb(config.models_dir) < size_mb:
        return Finding("weights", "missing", f"{detail}, and there is no room for it", "make room, or set ANTIPHON_MODELS")
    return Finding("weights", "note", detail, f"antiphon models pull {names}")


def check_speech(config: Config) -> Finding:
    """What voice conversations need; it is `missing` where speech is switched on, otherwise a note."""
    if config.speech.enabled is False:
        return Finding("speech", "ok", "switched off")
    state: Literal["note", "missing"] = "missing" if config.speech.enabled else "note"
    absent = [name for name in _required_packages(extra="speech") if not _package_version(name)]
    if absent:
        return Finding("speech", state, f"not installed: {', '.join(absent)}", _remedy("speech"))
    if altered_names := checks.altered_speech_models(config):
        return Finding(
            "speech", "missing", f"altered since they were fetched: {', '.join(altered_names)}", checks.pull_command(altered_names)
        )
    names = checks.missing_speech_models(config)
    if not names:
        return Finding("speech", "ok", ", ".join(config.speech.catalogue_models))
    size_mb = sum(catalogue.find(name).size_bytes for name in names) // 1_000_000
    return Finding(
        "speech", state, f"voice conversations need {', '.join(names)}, not fetched yet: {size_mb} MB", checks.pull_command(names)
    )


def _required_models(config: Config, installed_names: Set[str]) -> list[CatalogueModel]:
    """The models of the catalogue that the server would load."""
    if config.models:
        names = [weights_name(model) for model in config.models]
        if any(route.examples for route in config.routing):
            names.append(EMBEDDING_MODEL)
        return [model for name, model in catalogue.load().items() if name in names]
    free_bytes = _free_mb(config.models_dir) * 1_000_000
    defaults = catalogue.default_models()
    # The server tries them in this order, too, and takes the first that it gets.
    return [next((model for model in defaults if model.name in installed_names or model.size_bytes < free_bytes), defaults[0])]


def check_folder(subject: str, path: Path) -> Finding:
    """Whether the server can write into a folder, which need not exist yet."""
    existing = _nearest_existing(path)
    free_mb = _free_mb(path)
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return Finding(subject, "missing", f"{existing} can't be written", "make it writable, or set ANTIPHON_HOME and ANTIPHON_MODELS")
    if free_mb < 100:
        return Finding(subject, "missing", f"{path}: only {free_mb} MB free", "make room")
    return Finding(subject, "ok", f"{mask_password(str(path))}, {free_mb / 1000:.1f} GB free")


def _nearest_existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _free_mb(path: Path) -> int:
    return shutil.disk_usage(_nearest_existing(path)).free // 1_000_000


def check_store(config: Config) -> Finding:
    """Whether the store can be used; it is neither made nor migrated."""
    url, location = config.database_url, settings.store_location(config)
    if url is None:
        return Finding("store", "ok", location)
    if url.startswith("sqlite") and not Path(urlsplit(url).path[1:]).exists():
        folder = check_folder("store", Path(urlsplit(url).path[1:]).parent)
        return folder if folder.state == "missing" else Finding("store", "ok", f"{location}, which the server makes")
    try:
        database = lazy.database.Database(url, timeout_s=config.store.timeout_s)
        is_current = asyncio.run(database.is_current())
    except ServerError as error:
        return Finding("store", "missing", error.operator_message.removesuffix("."), "correct `store.url`, or start the database")
    return Finding("store", "ok", location if is_current else f"{location}, whose tables the server makes or migrates")


def check_recordings(config: Config) -> Finding:
    """Whether recordings can be stored."""
    location = config.recordings_location
    if config.recording.when == "never" and config.recording.url is None:
        return Finding("recordings", "ok", "sessions are not recorded")
    if "://" not in location:
        return check_folder("recordings", Path(location))
    problems: list[str] = []
    try:
        asyncio.run(BlobStore(location, problems.append).list_files("sess_none"))
    except (ServerError, ImportError) as error:
        detail = "; ".join(problems).removesuffix(".") or mask_password(str(error))
        return Finding("recordings", "missing", detail, "correct `recording.url`, or the credentials in the environment")
    return Finding("recordings", "ok", mask_password(location))


def check_tls(config: Config) -> Finding:
    """The certificates that the server makes, if it is to; they are neither made nor renewed."""
    if config.server.tls == "off":
        return Finding("tls", "ok", "off: plain HTTP")
    try:
        certificates = lazy.certificates.read_certificates(config)
    except ServerError as error:
        return Finding("tls", "missing", error.operator_message.removesuffix("."), "remove that folder, and trust the new authority")
    if certificates is None:
        return Finding("tls", "note", f"no certificates in {config.tls_folder}, so the server makes them")
    ends = (certificates.authority.certificate.not_valid_after_utc, certificates.server.certificate.not_valid_after_utc)
    detail = f"{config.ca_file}, valid until {ends[0]:%Y-%m-%d}; its certificate for this server until {ends[1]:%Y-%m-%d}, then renewed"
    return Finding("tls", "ok", detail)


def check_port(shell: Shell, config: Config) -> Finding:
    """Whether the configured address is free, or antiphon listens there."""
    client = configured_client(shell, config)
    if client.is_alive():
        return Finding("server", "ok", f"running at {client.base_url}")
    host, number = config.server.host, config.server.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # As the server binds: connections that have just ended must not seem to hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            return Finding(
                "server", "missing", f"can't listen on {host}:{number}: {error.strerror or error}", "choose another with ANTIPHON_PORT"
            )
    return Finding("server", "note", f"not running; {host}:{number} is free", "antiphon serve")


def _remedy(*extras: str) -> str:
    """The installation's command behind the dash of a finding."""
    return install_hint(*extras).removesuffix(".").replace("Run", "run", 1)


def _required_packages(extra: str | None) -> list[str]:
    """The packages that antiphon, or one of its extras, declares; none if antiphon is not installed."""
    try:
        lines = metadata.requires("antiphon") or ()
    except metadata.PackageNotFoundError:
        return []
    requirements = [(re.split(r"[^\w.-]", line)[0], re.search(r"""extra == ['"]([\w-]+)""", line)) for line in lines]
    return [name for name, mark in requirements if (mark[1] if mark else None) == extra]


def _package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
