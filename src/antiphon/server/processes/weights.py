"""Fetches weights while the server's address already answers, and tries again where that fails."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from antiphon.config.load import Config
from antiphon.errors import ServerError
from antiphon.stop_signals import has_terminal
from antiphon.weights.watch import FetchWatch

Prepare: TypeAlias = Callable[[FetchWatch], Config]
"""Fetches the weights of the models; returns the configuration with the default models, where it has none."""

RETRY_DELAYS_S = (10.0, 20.0, 40.0, 60.0)
"""When weights are tried to be fetched again; the last one counts from then on."""

RETRIED_CODES = ("weights_unavailable", "disk_full")
"""Of errors that may be over some time later."""

CANCEL_S = 2.0
"""How long a download may take to end when the server is stopped."""


async def fetch_weights(
    config: Config, prepare: Prepare, watch: FetchWatch, notice: Callable[[str], None], retry_delays_s: Sequence[float] = RETRY_DELAYS_S
) -> Config:
    """
    The configuration with the models to serve, once their weights are there.

    Raises:
        Exception: of `prepare`; that weights can't be fetched only where `server.retry_start` says so.
    """
    retries = has_terminal() if config.server.retry_start is None else config.server.retry_start
    for attempt in itertools.count():
        try:
            return await _in_thread(prepare, watch)
        except ServerError as error:
            if not retries or error.code not in RETRIED_CODES:
                raise
            delay_s = retry_delays_s[min(attempt, len(retry_delays_s) - 1)]
            watch.failure = error.message
            notice(f"{error.message} Trying again in {delay_s:g} s; Ctrl-C stops the server.")
            await asyncio.sleep(delay_s)
            watch.failure = None
    raise AssertionError("it counts for ever")


async def _in_thread(prepare: Prepare, watch: FetchWatch) -> Config:
    """Call `prepare` in a daemon thread, which doesn't keep a stopped server alive; on cancellation, end its download."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Config] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not outcome.done():
            set_outcome()

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            try:
                config = prepare(watch)
            except Exception as failure:
                error = failure
                loop.call_soon_threadsafe(settle, lambda: outcome.set_exception(error))
            else:
                loop.call_soon_threadsafe(settle, lambda: outcome.set_result(config))

    thread = threading.Thread(target=run, name="weights", daemon=True)
    thread.start()
    try:
        return await outcome
    except asyncio.CancelledError:
        watch.cancel()
        thread.join(CANCEL_S)
        raise
