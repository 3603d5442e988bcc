"""How far downloads are, as other threads see it."""

import pytest

from antiphon.errors import ServerError
from antiphon.weights.catalogue import CatalogueModel, ModelFile, ModelKind
from antiphon.weights.watch import FetchWatch, RelayedWatch, StartCancelled, WeightsView


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def model(name: str, *sizes: int, kind: ModelKind = "llm") -> CatalogueModel:
    files = tuple(ModelFile(path=f"{number}.bin", size_bytes=size, sha256="0" * 64, sources=()) for number, size in enumerate(sizes))
    return CatalogueModel(name=name, kind=kind, description="", licence="", homepage="", files=files)


def fetch(watch: FetchWatch, clock: Clock, each: CatalogueModel, seconds_per_file: float = 1) -> list[WeightsView]:
    """Fetch all files of a model in two steps each; returns what was seen after each step."""
    seen = []
    with watch.fetching(each):
        for file in each.files:
            with watch.fetching_file(each, file, lambda *_progress: None) as report:
                for part in (2, 1):
                    clock.now += seconds_per_file / 2
                    report(f"fetching {file.path}", file.size_bytes // part, file.size_bytes)
                    seen.append(watch.views()[-1])
                report(f"verifying {file.path}", 1, file.size_bytes)
    return seen


def test_progress_is_that_of_all_files_of_a_model() -> None:
    clock = Clock()
    watch = FetchWatch(clock=clock)
    seen = fetch(watch, clock, model("tiny", 600, 400))
    assert [(view.bytes, view.bytes_total, view.state, view.purpose) for view in seen] == [
        (bytes, 1000, "fetching", "answers") for bytes in (300, 600, 800, 1000)
    ]
    assert (seen[0].bytes_per_s, seen[0].eta_s) == (None, None)
    assert (seen[1].bytes_per_s, seen[1].eta_s) == (600, 0.7)
    (end,) = watch.views()
    assert (end.bytes, end.state, end.bytes_per_s) == (1000, "loading", None)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    watch = FetchWatch(clock=clock)
    seen = fetch(watch, clock, model("large", 1000, 1000, 1000, 10), seconds_per_file=8)
    assert seen[3].bytes_per_s == 125 and seen[-1].bytes_per_s is not None and seen[-1].bytes_per_s < 125


def test_the_first_download_is_announced_once() -> None:
    clock, calls = Clock(), []
    watch = FetchWatch(lambda: calls.append(clock.now), clock)
    fetch(watch, clock, model("a", 2))
    fetch(watch, clock, model("b", 2, kind="tts"))
    assert len(calls) == 1 and [view.purpose for view in watch.views()] == ["answers", "voice"]


def test_what_failed_gives_way_to_what_comes_in_its_place() -> None:
    clock = Clock()
    watch = FetchWatch(clock=clock)
    for kind in ("llm", "tts"):
        with pytest.raises(ServerError), watch.fetching(model(f"best-{kind}", 5, kind=kind)):  # type: ignore[arg-type]
            raise ServerError("It could not be fetched.")
    assert [(view.name, view.state) for view in watch.views()] == [("best-llm", "failed"), ("best-tts", "failed")]
    fetch(watch, clock, model("second", 5))
    assert [(view.name, view.state) for view in watch.views()] == [("best-tts", "failed"), ("second", "loading")]


def test_a_download_ends_when_nobody_waits_for_it_any_more() -> None:
    watch = FetchWatch()
    watch.cancel()
    with pytest.raises(StartCancelled):
        fetch(watch, Clock(), model("tiny", 5))


def test_another_process_shows_what_it_is_told() -> None:
    watch = RelayedWatch()
    view = WeightsView("tiny", "answers", "fetching", 3, 10, 5, 1.4)
    watch.update((view,), "It could not be fetched.")
    assert (watch.views(), watch.failure) == ((view,), "It could not be fetched.")
    watch.mark_loading()
    assert watch.views() == (WeightsView("tiny", "answers", "loading", 3, 10),)
