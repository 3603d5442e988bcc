"""Progress of a download: a bar on a terminal, an occasional line elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator

from antiphon.cli.common.shell import Shell, format_size
from antiphon.weights.verify import ProgressCallback

_STEP_PERCENT = 10
_MIN_INTERVAL_S = 1.0


@contextlib.contextmanager
def show_progress(shell: Shell) -> Iterator[ProgressCallback]:
    """Yields a callback that shows progress as a bar or as lines, whichever fits stderr."""
    if not shell.is_interactive:
        yield ProgressLines(shell.note)
        return
    with _show_bars(shell) as report:
        yield report


class ProgressLines:
    """
    Progress as plain lines: the start and the end, and between them at most one for every ten percent and every second.

    Args:
        clock: in seconds, from any origin.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._last_lines: dict[str, tuple[int, float]] = {}

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Write a line if enough has changed."""
        percent = 100 * done_bytes // total_bytes if total_bytes else 0
        step, now = percent - percent % _STEP_PERCENT, self._clock()
        last_step, last_s = self._last_lines.get(stage, (-1, now - _MIN_INTERVAL_S))
        if step > last_step and (now - last_s >= _MIN_INTERVAL_S or percent == 100):
            self._last_lines[stage] = step, now
            self._write(f"{stage}: {step} % of {format_size(total_bytes)}" if total_bytes else stage)


@contextlib.contextmanager
def _show_bars(shell: Shell) -> Iterator[ProgressCallback]:
    from rich import progress, table  # noqa: PLC0415 - as slow to load as a whole short command; most draw no bars

    columns = (
        progress.TextColumn("{task.description}", table_column=table.Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        progress.BarColumn(20),
        progress.TaskProgressColumn(table_column=table.Column(no_wrap=True)),
        progress.TransferSpeedColumn(table_column=table.Column(no_wrap=True, width=11)),
        progress.TimeRemainingColumn(table_column=table.Column(no_wrap=True)),
    )
    with progress.Progress(*columns, console=shell.console(shell.stderr), expand=True) as bars:
        tasks: dict[str, progress.TaskID] = {}

        def report(stage: str, done_bytes: int, total_bytes: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done_bytes, total=total_bytes or None)

        try:
            yield report
        except BaseException:
            bars.live.transient = True  # remove the unfinished bar above the error message
            raise
