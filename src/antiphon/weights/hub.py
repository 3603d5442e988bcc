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
from antiphon.weights.partial import Advance, Partial, Trouble

_CHUNK_BYTES = 1 << 20
_SILENCE_S = 30.0

_Opened = http.client.HTTPResponse | Exception


class Hub:
    """
    A model hub, as far as it can be reached; one that once was not is not asked again.

    Args:
        address: where it is, or None to do without.
        patience_s: how long it may take to begin an answer, names and connections included.
    """

    def __init__(self, address: str | None, patience_s: float = 4.0) -> None:
        self._address = address and address.rstrip("/")
        self._patience_s = patience_s
        self._gone: str | None = None if address else "the hub is switched off by HF_HUB_OFFLINE"

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Hub":
        """The hub that the environment names."""
        offline = environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
        return cls(None if offline else environ.get("HF_ENDPOINT") or "https://huggingface.co")

    def fetch(self, source: HubFile, part: Partial, size_bytes: int, advance: Advance) -> None:
        """
        Add what is missing to `part`, going on where it ends.

        Raises:
            Trouble: the hub can't be reached, doesn't have the file, or stopped short.
        """
        part.cut(size_bytes)
        while (before_bytes := part.size_bytes) < size_bytes:
            self._pull(source, part, size_bytes, advance)
            if part.size_bytes <= before_bytes:
                raise Trouble(f"the hub stopped at {before_bytes} of {size_bytes} bytes")

    def _pull(self, source: HubFile, part: Partial, size_bytes: int, advance: Advance) -> None:
        start_bytes = part.size_bytes
        with self._open(source, start_bytes) as response:
            if start_bytes and response.status != 206:  # it sends the whole file, whatever was asked
                part.cut(0)
            with part.append() as out:
                while out.tell() < size_bytes and (chunk := _read(response)):
                    out.write(chunk)
                    advance(out.tell())

    def _open(self, source: HubFile, start_bytes: int) -> http.client.HTTPResponse:
        if self._gone is not None:
            raise Trouble(self._gone)
        path = "/".join(quote(piece) for piece in (source.repo, "resolve", source.revision, source.file))
        headers = {"User-Agent": "antiphon"} | ({"Range": f"bytes={start_bytes}-"} if start_bytes else {})
        opened = _within(self._patience_s, urllib.request.Request(f"{self._address}/{path}", headers=headers))
        match opened:
            case http.client.HTTPResponse():
                return opened
            case urllib.error.HTTPError():
                with opened:
                    raise Trouble(f"the hub answered {opened.code} {opened.reason}")
            case _:
                self._gone = f"the hub at {self._address} can't be reached ({_reason(opened)})"
                raise Trouble(self._gone)


def _within(patience_s: float, request: urllib.request.Request) -> _Opened:
    """
    The response once its head is here, or what went wrong.

    A thread of its own, because looking up a name and trying address after address each have time-outs of their own that add up.
    """
    done: SimpleQueue[_Opened] = SimpleQueue()
    given_up = threading.Event()

    def ask() -> None:
        try:
            response: _Opened = urllib.request.urlopen(request, timeout=_SILENCE_S)
        except (OSError, http.client.HTTPException) as error:
            response = error
        done.put(response)
        if given_up.is_set() and not isinstance(response, Exception):
            response.close()

    threading.Thread(target=ask, daemon=True, name="antiphon-hub").start()
    try:
        return done.get(timeout=patience_s)
    except Empty:
        given_up.set()
        return TimeoutError(f"no answer in {patience_s:g} seconds")


def _read(response: http.client.HTTPResponse) -> bytes:
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
