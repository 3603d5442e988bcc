"""How far the download of a starting server's weights has come, for other threads to read."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct, structs

from antiphon.weights.catalogue import CatalogueModel, ModelFile, ModelKind
from antiphon.weights.verify import ProgressCallback

WeightsState = Literal["fetching", "loading", "failed"]

PURPOSES: dict[ModelKind, str] = {
    "llm": "answers",
    "vad": "hearing",
    "turn": "hearing",
    "stt": "hearing",
    "tts": "voice",
    "embedding": "search",
}
"""What weights are for, in the words of the page."""

WINDOW_S = 10.0
"""The time over which the rate of a download is measured."""


class StartCancelled(Exception):
    """The server was stopped while it was starting."""


class WeightsView(Struct, frozen=True):
    """
    How much of a model's weights has been fetched.

    Attributes:
        bytes_per_s: of the last `WINDOW_S`; None while nothing is known.
        eta_s: seconds until all is there; None while nothing is known.
    """

    name: str
    purpose: str
    state: WeightsState
    bytes: int
    bytes_total: int
    bytes_per_s: int | None = None
    eta_s: float | None = None


class _Weights:
    def __init__(self, model: CatalogueModel) -> None:
        self.model = model
        self.state: WeightsState = "fetching"
        self.done_bytes = self.file_bytes = 0
        self.samples: deque[tuple[float, int]] = deque()

    def view(self, now: float) -> WeightsView:
        done_bytes, total_bytes = self.done_bytes + self.file_bytes, self.model.size_bytes
        rate = self._rate(now) if self.state == "fetching" else None
        eta_s = None if not rate else round((total_bytes - done_bytes) / rate, 1)
        return WeightsView(self.model.name, PURPOSES[self.model.kind], self.state, done_bytes, total_bytes, rate, eta_s)

    def _rate(self, now: float) -> int | None:
        recent = [sample for sample in self.samples if sample[0] >= now - WINDOW_S]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return None
        return int((recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0]))


class FetchWatch:
    """
    Notes the progress of downloads.

    Args:
        on_first: called before the first download begins.
        clock: seconds from any origin.

    Attributes:
        failure: why weights could not be fetched; None while they can.
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic) -> None:
        self._on_first = on_first
        self._clock = clock
        self._lock = threading.Lock()
        self._weights: dict[str, _Weights] = {}
        self._is_cancelled = False
        self.failure: str | None = None

    def cancel(self) -> None:
        """Have the next report raise `StartCancelled`, which ends the download."""
        self._is_cancelled = True

    def views(self) -> list[WeightsView]:
        """All weights that had to be fetched, in the order in which that began."""
        with self._lock:
            return [weights.view(self._clock()) for weights in self._weights.values()]

    def mark_loading(self) -> None:
        """What has been fetched is being loaded."""
        with self._lock:
            for weights in self._weights.values():
                weights.state = "loading"

    @contextlib.contextmanager
    def fetching(self, model: CatalogueModel) -> Iterator[None]:
        """Note that a model is being fetched while this is entered, and at its end whether it failed."""
        if not self._weights:
            self._on_first()
        with self._lock:
            # It replaces the one of its kind that could not be fetched.
            for name in [each.model.name for each in self._weights.values() if each.state == "failed" and each.model.kind == model.kind]:
                del self._weights[name]
            self._weights[model.name] = weights = _Weights(model)
        try:
            yield
        except Exception:
            weights.state = "failed"
            raise
        with self._lock:
            weights.done_bytes, weights.file_bytes, weights.state = model.size_bytes, 0, "loading"

    @contextlib.contextmanager
    def fetching_file(self, model: CatalogueModel, file: ModelFile, report: ProgressCallback) -> Iterator[ProgressCallback]:
        """Yields a callback that notes the progress of one of its files, and passes it on."""
        weights = self._weights[model.name]

        def note(stage: str, done_bytes: int, total_bytes: int) -> None:
            if self._is_cancelled:
                raise StartCancelled
            with self._lock:
                if stage.startswith("fetching"):  # the other stage checks bytes that have come already
                    weights.file_bytes = min(done_bytes, file.size_bytes)
                now = self._clock()
                weights.samples.append((now, weights.done_bytes + weights.file_bytes))
                while weights.samples[0][0] < now - WINDOW_S and len(weights.samples) > 2:
                    weights.samples.popleft()
            report(stage, done_bytes, total_bytes)

        yield note
        with self._lock:
            weights.done_bytes, weights.file_bytes = weights.done_bytes + file.size_bytes, 0


class RelayedWatch:
    """The progress of a download in another process, as of its latest report."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self._views: tuple[WeightsView, ...] = ()

    def update(self, views: tuple[WeightsView, ...], failure: str | None) -> None:
        """Take over a report of the other process."""
        self._views, self.failure = views, failure

    def views(self) -> tuple[WeightsView, ...]:
        """All weights, as of the latest report."""
        return self._views

    def mark_loading(self) -> None:
        """What has been fetched is being loaded."""
        self._views = tuple(structs.replace(view, state="loading", bytes_per_s=None, eta_s=None) for view in self._views)
