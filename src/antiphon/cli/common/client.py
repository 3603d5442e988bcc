"""A plain HTTP client of the Responses API: what a program needs that has no SDK."""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any

import msgspec

from antiphon.errors import UpstreamError
from antiphon.wire.codec.sse import SseParser

RESPONSE_TIMEOUT_S = 600  # a small machine may think this long before it says the first word
PROBE_TIMEOUT_S = 5

_MAX_EVENT_BYTES = 64 << 20  # the last event of a stream carries the whole response
_CHUNK_BYTES = 1 << 16

_KEY_HINT = (
    "Put a key into ANTIPHON_API_KEY, or into OPENAI_API_KEY where OPENAI_BASE_URL names the server; `antiphon keys create` makes keys."
)
"""The server goes on with what header to send; whoever typed a command wants to know what to set."""

# No proxies: the server is on this machine or named outright.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerUnreachable(UpstreamError):
    """Nothing answers at that address."""


class ApiClient:
    """
    Talks to one server.

    Args:
        base_url: with or without the closing `/v1`.
        key: sent as the bearer token where there is one.
    """

    def __init__(self, base_url: str, key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.key = key
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def get(self, path: str, timeout_s: float = PROBE_TIMEOUT_S) -> dict[str, Any]:
        """The body of a GET."""
        with self._open(path, None, timeout_s) as response:
            return _decode_object(response.read())

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the answer to a POST."""
        with self._open(path, body, RESPONSE_TIMEOUT_S) as response:
            return _decode_object(response.read())

    def delete(self, path: str) -> dict[str, Any]:
        """The body of the answer to a DELETE."""
        with self._open(path, None, PROBE_TIMEOUT_S, "DELETE") as response:
            return _decode_object(response.read())

    def get_file(self, path: str) -> bytes:
        """A whole file."""
        with self._open(path, None, RESPONSE_TIMEOUT_S) as response:
            try:
                return response.read()
            except (OSError, HTTPException):
                raise ServerUnreachable(f"The server at {self.base_url} sent {path} in part only.") from None

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of the answer to a POST, as they come."""
        with self._open(path, {**body, "stream": True}, RESPONSE_TIMEOUT_S) as response:
            parser = SseParser(_MAX_EVENT_BYTES)
            while piece := response.read1(_CHUNK_BYTES):
                yield from (_decode_object(event) for event in parser.feed(piece) if event != b"[DONE]")

    def list_models(self) -> list[str]:
        """The names of the models that the server offers."""
        return [model["id"] for model in self.get("/v1/models")["data"]]

    def first_model(self) -> str:
        """
        The name of the model to ask where none was named.

        Raises:
            UpstreamError: there is none.
        """
        models = self.list_models()
        if not models:
            raise UpstreamError(f"The server at {self.base_url} offers no models.")
        return models[0]

    def is_alive(self) -> bool:
        """Whether an antiphon answers there."""
        try:
            return self.get("/version").get("name") == "antiphon"
        except UpstreamError:
            return False

    def _open(self, path: str, body: Mapping[str, Any] | None, timeout_s: float, method: str | None = None) -> HTTPResponse:
        """
        The answer, its head read.

        Raises:
            Unreachable: nobody is there.
            UpstreamError: the server declined; with its own words.
        """
        payload = msgspec.json.encode(body) if body is not None else None
        try:
            request = urllib.request.Request(self.base_url + path, payload, self._headers, method=method)
            response: HTTPResponse = _opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            raise _status_error(error) from None
        except (OSError, HTTPException, ValueError) as error:
            raise unreachable_error(self.base_url, error) from None
        return response


def unreachable_error(base_url: str, error: Exception) -> ServerUnreachable:
    """Nobody answers there, for the reason that `error` has."""
    reason = getattr(error, "reason", None) or error
    code = getattr(reason, "errno", None)  # what goes with it may be a tuple, an address, or the number again
    told = os.strerror(code) if isinstance(code, int) and code > 0 else getattr(reason, "strerror", None) or str(reason)
    return ServerUnreachable(f"No answer from {base_url}: {told.removesuffix('.')}. Does the server run, and is that its address?")


def _status_error(error: urllib.error.HTTPError) -> UpstreamError:
    """What the server said instead of an answer."""
    with error:
        text = error.read()
    try:
        fault = _decode_object(text)["error"]
        told = fault["message"]
        if error.code == HTTPStatus.UNAUTHORIZED:
            told = f"{told.partition('. ')[0].removesuffix('.')}. {_KEY_HINT}"
        return UpstreamError(told, code=fault.get("code"), param=fault.get("param"), status=error.code)
    except (UpstreamError, KeyError, TypeError, AttributeError):
        return UpstreamError(f"The server at {error.url} answered {error.code} {error.reason}.", status=error.code)


def _decode_object(text: bytes | str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UpstreamError(f"What came is no JSON object: {error}.") from None
