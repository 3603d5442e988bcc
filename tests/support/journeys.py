"""The calls that a server in a thread of this process makes, recorded by the interpreter's profiling hook."""

import sys
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path

import antiphon

SOURCE = str(Path(antiphon.__file__).parent) + "/"


def name_of(frame):
    """A function of ours as `room/sub-room/module.py:function`; None for any other."""
    path = frame.f_code.co_filename
    return f"{path.removeprefix(SOURCE)}:{frame.f_code.co_name}" if path.startswith(SOURCE) else None


def file_of(name):
    return name.partition(":")[0]


class Journeys:
    """
    The calls between files that a function makes, directly or not, until it returns; those of its own thread alone.

    Args:
        starts: the functions at which journeys start, each as `room/sub-room/module.py:function`.

    Attributes:
        seen: how often each journey was made: the functions in the order of their first call.
    """

    def __init__(self, *starts):
        self._starts = starts
        self._under_way = defaultdict(dict)  # by thread: what another does meanwhile is no part of a journey
        self.seen = Counter()

    def __call__(self, frame, event, arg):
        if event == "call":
            self._enter(frame)
        elif event == "return":
            journey = self._under_way[threading.get_ident()].pop(frame, None)
            if journey is not None:
                self.seen[tuple(journey)] += 1

    def _enter(self, frame):
        name = name_of(frame)
        if name is None:
            return
        under_way = self._under_way[threading.get_ident()]
        for start, journey in under_way.items():
            if start.f_code is not frame.f_code and self._is_from_another_file(frame, name) and name not in journey:
                journey.append(name)
        if name in self._starts:
            under_way[frame] = [name]

    def _is_from_another_file(self, frame, name):
        caller = frame.f_back
        while caller is not None and (caller_name := name_of(caller)) is None:
            caller = caller.f_back
        return caller is None or file_of(caller_name) != file_of(name)

    def through(self, start, *files):
        """The most frequent journey from `start` that calls into all of these files or folders."""
        passing = Counter()
        for journey, count in self.seen.items():
            if journey[0] == start and all(any(name.startswith(prefix) for name in journey) for prefix in files):
                passing[journey] = count
        assert passing, (start, files, self.seen)
        return list(passing.most_common(1)[0][0])

    @contextmanager
    def of_threads_started_here(self):
        threading.setprofile(self)
        try:
            yield self
        finally:
            threading.setprofile(None)
            sys.setprofile(None)
