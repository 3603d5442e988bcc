"""In which order background responses are made that wait."""

import re

from antiphon.wire.responses.request import BackgroundOptions

MAX_RUNS = 10_000
"""How many runs are remembered; beyond it, the oldest."""

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def completion_window_s(options: BackgroundOptions | None) -> float:
    """
    How long a response may take by its `completion_window`, such as `15m` or `24h`. It is a hint, so any other text means
    none.
    """
    window = re.fullmatch(r"(\d{1,4})\s?([smhd])", (options.completion_window or "") if options else "")
    return int(window[1]) * _UNITS_S[window[2]] if window else 0


class CompletionOrder:
    """
    Ranks responses by when they should be complete.

    Responses of one run, which have the same `continuation_id`, window, model and tenant, share the end of its first
    window: a follow-up doesn't wait behind what came since. When that has passed, the next one begins a run anew.

    Source: OpenAI's guide to background mode, on completion windows.
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str, str, float], float] = {}  # of the windows of runs, the oldest first

    def rank(self, tenant: str, model: str, options: BackgroundOptions | None, created_at: float) -> float:
        """When the response should be complete, in Unix seconds; those with the least are made first."""
        window_s = completion_window_s(options)
        run_id = options.continuation_id if options is not None else None
        if not run_id or not window_s:
            return created_at + window_s
        key = (tenant, model, run_id, window_s)
        end = self._ends.get(key, 0)
        if end <= created_at:
            self._ends.pop(key, None)
            end = self._ends[key] = created_at + window_s
            while len(self._ends) > MAX_RUNS:
                del self._ends[next(iter(self._ends))]
        return end
