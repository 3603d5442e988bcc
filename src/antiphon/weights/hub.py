"""
Files from a model hub: `<hub>/<repo>/resolve/<revision>/<file>`, the address scheme of the Hugging Face Hub and its mirrors.

Honours `HF_ENDPOINT`, `HF_HUB_OFFLINE` and the usual proxy variables.
"""

import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from urllib.parse import quote

from antiphon.weights.catalogue import HubFile
from antiphon.weights.partial import BytesCallback, PartialFile, SourceUnavailable

_CHUNK_BYTES = 1 << 20
_READ_TIMEOUT_S = 30.0

_OpenResult = http.client.HTTPResponse | Exception


class Hub:
    """
    A model hub, as far as it can be reached; one that once was not is not asked again.

    Args:
        address: where it is, or None to do without.
        patience_s: how long it may take to begin an answer, names and connections included.
    """

    def __init__(self, address: str | None, response_timeout_s: float = 4.0) -> None:
        self._address = address and address.rstrip("/")
        self._response_timeout_s = response_timeout_s
        self._unreachable_reason: str | None = None if address else "the hub is switched off by HF_HUB_OFFLINE"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Hub":
        """The hub that the environment names."""
        offline = environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
        return cls(None if offline else environ.get("HF_ENDPOINT") or "https://huggingface.co")

    def fetch(self, source: HubFile, partial: PartialFile, size_bytes: int, advance: BytesCallback) -> None:
        """
        Add what is missing to `part`, going on where it ends.

        Raises:
            Trouble: the hub can't be reached, doesn't have the file, or stopped short.
        """
        partial.truncate(size_bytes)
        while (before_bytes := partial.size_bytes) < size_bytes:
            self._append_response(source, partial, size_bytes, advance)
            if partial.size_bytes <= before_bytes:
                raise SourceUnavailable(f"the hub stopped at {before_bytes} of {size_bytes} bytes")

    def _append_response(self, source: HubFile, partial: PartialFile, size_bytes: int, advance: BytesCallback) -> None:
        start_bytes = partial.size_bytes
        with self._open(source, start_bytes) as response:
            if start_bytes and response.status != 206:  # it sends the whole file, whatever was asked
                partial.truncate(0)
            with partial.open_for_append() as out:
                while out.tell() < size_bytes and (chunk := _read_chunk(response)):
                    out.write(chunk)
                    advance(out.tell())

    def _open(self, source: HubFile, start_bytes: int) -> http.client.HTTPResponse:
        if self._unreachable_reason is not None:
            raise SourceUnavailable(self._unreachable_reason)
        path = "/".join(quote(piece) for piece in (source.repo, "resolve", source.revision, source.file))
        headers = {"User-Agent": "antiphon"} | ({"Range": f"bytes={start_bytes}-"} if start_bytes else {})
        opened = _open_within(self._response_timeout_s, urllib.request.Request(f"{self._address}/{path}", headers=headers))
        match opened:
            case http.client.HTTPResponse():
                return opened
            case urllib.error.HTTPError():
                with opened:
                    raise SourceUnavailable(f"the hub answered {opened.code} {opened.reason}")
            case _:
                self._unreachable_reason = f"the hub at {self._address} can't be reached ({_reason(opened)})"
                raise SourceUnavailable(self._unreachable_reason)


def _open_within(timeout_s: float, request: urllib.request.Request) -> _OpenResult:
    """
    The response once its head is here, or what went wrong.

    A thread of its own, because looking up a name and trying address after address each have time-outs of their own that add up.
    """
    done: SimpleQueue[_OpenResult] = SimpleQueue()
    given_up = threading.Event()

    def ask() -> None:
        try:
            response: _OpenResult = urllib.request.urlopen(request, timeout=_READ_TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            response = error
        done.put(response)
        if given_up.is_set() and not isinstance(response, Exception):
            response.close()

    threading.Thread(target=ask, daemon=True, name="antiphon-hub").start()
    try:
        return done.get(timeout=timeout_s)
    except Empty:
        given_up.set()
        return TimeoutError(f"no answer in {timeout_s:g} seconds")


def _read_chunk(response: http.client.HTTPResponse) -> bytes:
    """More of the body; nothing at its end, or where the connection breaks: what came so far is kept either way."""
    try:
        return response.read(_CHUNK_BYTES)
    except http.client.IncompleteRead as error:
        return error.partial
    except OSError:
        return b""


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason).lower()
