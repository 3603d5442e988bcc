"""
Runs work on a large input in a thread, so that the event loop goes on serving others.

The interpreter runs one thread at a time: a server's threads give way every `SWITCH_INTERVAL_S`, but not within one call
of native code. So inputs are bounded before (`antiphon.wire.codec.structure`).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 128 << 10
"""Smaller inputs are handled on the loop: they take about 2 ms, and a thread 0.1 ms more."""

SWITCH_INTERVAL_S = 0.001
"""Python's default, 5 ms, is what the loop would wait at each of its turns while the thread works."""

# One thread: a second one would not be faster, but hold a second large input in memory.
_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-large-input")


async def offload(size_bytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    The result of `function`, which is called in a thread if its input is large.

    Args:
        size_bytes: of the input, roughly. Inputs of `LARGE_BYTES` and more are handled one after another.
    """
    if size_bytes < LARGE_BYTES:
        return function(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_executor, lambda: function(*args, **kwargs))
