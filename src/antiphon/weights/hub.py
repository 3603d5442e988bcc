"""
Files from a model hub: `<hub>/<repo>/resolve/<revision>/<file>`, the address scheme of the Hugging Face Hub and its
mirrors.

Honours `HF_ENDPOINT`, `HF_HUB_OFFLINE` and the usual proxy variables.
"""

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from urllib.parse import quote

from antiphon.masking import mask_address
from antiphon.weights.catalogue import HubFile
from antiphon.weights.partial import BytesCallback, PartialFile, SourceUnavailable

_CHUNK_BYTES = 1 << 20
_READ_TIMEOUT_S = 30.0

UNREACHABLE_S = (10.0, 20.0, 40.0, 80.0, 160.0)
"""How long a hub that can't be reached is not asked, after one failure, two and so on in a row."""

_OpenResult = http.client.HTTPResponse | Exception


class Hub:
    """
    A model hub. One that could not be reached is not asked for a while, as its timeout would be waited for with every file.

    Args:
        address: its URL; None to use no hub.
        response_timeout_s: how long a response's head may take, DNS and connecting included.
        clock: seconds that pass.
    """

    def __init__(self, address: str | None, response_timeout_s: float = 4.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address and address.rstrip("/")
        self._response_timeout_s = response_timeout_s
        self._clock = clock
        self._unreachable_reason = ""
        self._failures = 0
        self._asked_again_at = 0.0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Hub":
        """The hub that the environment names."""
        # The values that huggingface_hub takes for true.
        offline = environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
        return cls(None if offline else environ.get("HF_ENDPOINT") or "https://huggingface.co")

    def fetch(self, source: HubFile, partial: PartialFile, size_bytes: int, advance: BytesCallback) -> None:
        """
        Append what is missing to `partial`.

        Raises:
            SourceUnavailable: the hub can't be reached, doesn't have the file, or ended the download early.
        """
        partial.truncate(size_bytes)
        while (before_bytes := partial.size_bytes) < size_bytes:
            self._append_response(source, partial, size_bytes, advance)
            if partial.size_bytes <= before_bytes:
                raise SourceUnavailable(f"the hub stopped at {before_bytes} of {size_bytes} bytes")

    def _append_response(self, source: HubFile, partial: PartialFile, size_bytes: int, advance: BytesCallback) -> None:
        start_bytes = partial.size_bytes
        with self._open(source, start_bytes) as response:
            if start_bytes and response.status != 206:  # it ignores `Range` and sends the whole file (RFC 9110 14.2)
                partial.truncate(0)
            with partial.open_for_append() as out:
                while out.tell() < size_bytes and (chunk := _read_chunk(response)):
                    out.write(chunk)
                    advance(out.tell())

    def _open(self, source: HubFile, start_bytes: int) -> http.client.HTTPResponse:
        if self._address is None:
            raise SourceUnavailable("the hub is switched off by HF_HUB_OFFLINE")
        if self._failures and self._clock() < self._asked_again_at:
            raise SourceUnavailable(self._unreachable_reason)
        path = "/".join(quote(piece) for piece in (source.repo, "resolve", source.revision, source.file))
        headers = {"User-Agent": "antiphon"} | ({"Range": f"bytes={start_bytes}-"} if start_bytes else {})
        result = _open_within(self._response_timeout_s, urllib.request.Request(f"{self._address}/{path}", headers=headers))
        if isinstance(result, http.client.HTTPResponse | urllib.error.HTTPError):
            self._failures = 0
        match result:
            case http.client.HTTPResponse():
                return result
            case urllib.error.HTTPError():
                # It was reached, and may have other files: only a hub that can't be reached is given up.
                with result:
                    raise SourceUnavailable(f"the hub answered {result.code} {result.reason}")
            case _:
                self._asked_again_at = self._clock() + UNREACHABLE_S[min(self._failures, len(UNREACHABLE_S) - 1)]
                self._failures += 1
                self._unreachable_reason = f"the hub at {mask_address(self._address)} can't be reached ({_reason(result)})"
                raise SourceUnavailable(self._unreachable_reason)


def _open_within(timeout_s: float, request: urllib.request.Request) -> _OpenResult:
    """
    The response once its head is here, or the error.

    In a thread, because DNS and each address of a name have timeouts of their own, which add up.
    """
    results: SimpleQueue[_OpenResult] = SimpleQueue()
    has_timed_out = threading.Event()

    def send_request() -> None:
        try:
            response: _OpenResult = urllib.request.urlopen(request, timeout=_READ_TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            response = error
        results.put(response)
        if has_timed_out.is_set() and not isinstance(response, Exception):
            response.close()

    threading.Thread(target=send_request, daemon=True, name="antiphon-hub").start()
    try:
        return results.get(timeout=timeout_s)
    except Empty:
        has_timed_out.set()
        return TimeoutError(f"no answer in {timeout_s:g} seconds")


def _read_chunk(response: http.client.HTTPResponse) -> bytes:
    """More of the body; empty at its end or where the connection breaks, which a later request resumes."""
    try:
        return response.read(_CHUNK_BYTES)
    except http.client.IncompleteRead as error:
        return error.partial
    except OSError:
        return b""


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    # Python takes what is before the `@` of an address for a part of the host, and says so.
    return mask_address(str(getattr(reason, "strerror", None) or reason).lower())
