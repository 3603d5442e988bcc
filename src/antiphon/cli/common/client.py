"""A plain HTTP client of the Responses API: what a program needs that has no SDK."""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any

import msgspec

from antiphon.errors import UpstreamTrouble
from antiphon.wire.codec.sse import SseParser

ANSWER_S = 600  # a small machine may think this long before it says the first word
PROBE_S = 5

_EVENT_BYTES = 64 << 20  # the last event of a stream carries the whole response
_PIECE_BYTES = 1 << 16

_KEY_WANTED = (
    "Put a key into ANTIPHON_API_KEY, or into OPENAI_API_KEY where OPENAI_BASE_URL names the server; `antiphon keys create` makes keys."
)
"""The server goes on with what header to send; whoever typed a command wants to know what to set."""

# No proxies: the server is on this machine or named outright.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Unreachable(UpstreamTrouble):
    """Nothing answers at that address."""


class Client:
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

    def get(self, path: str, timeout_s: float = PROBE_S) -> dict[str, Any]:
        """The body of a GET."""
        with self._open(path, None, timeout_s) as response:
            return _object(response.read())

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the answer to a POST."""
        with self._open(path, body, ANSWER_S) as response:
            return _object(response.read())

    def delete(self, path: str) -> dict[str, Any]:
        """The body of the answer to a DELETE."""
        with self._open(path, None, PROBE_S, "DELETE") as response:
            return _object(response.read())

    def file(self, path: str) -> bytes:
        """A whole file."""
        with self._open(path, None, ANSWER_S) as response:
            try:
                return response.read()
            except (OSError, HTTPException):
                raise Unreachable(f"The server at {self.base_url} sent {path} in part only.") from None

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of the answer to a POST, as they come."""
        with self._open(path, {**body, "stream": True}, ANSWER_S) as response:
            parser = SseParser(_EVENT_BYTES)
            while piece := response.read1(_PIECE_BYTES):
                yield from (_object(event) for event in parser.feed(piece) if event != b"[DONE]")

    def models(self) -> list[str]:
        """The names of the models that the server offers."""
        return [model["id"] for model in self.get("/v1/models")["data"]]

    def first_model(self) -> str:
        """
        The name of the model to ask where none was named.

        Raises:
            UpstreamTrouble: there is none.
        """
        models = self.models()
        if not models:
            raise UpstreamTrouble(f"The server at {self.base_url} offers no models.")
        return models[0]

    def alive(self) -> bool:
        """Whether an antiphon answers there."""
        try:
            return self.get("/version").get("name") == "antiphon"
        except UpstreamTrouble:
            return False

    def _open(self, path: str, body: Mapping[str, Any] | None, timeout_s: float, method: str | None = None) -> HTTPResponse:
        """
        The answer, its head read.

        Raises:
            Unreachable: nobody is there.
            UpstreamTrouble: the server declined; with its own words.
        """
        payload = msgspec.json.encode(body) if body is not None else None
        try:
            request = urllib.request.Request(self.base_url + path, payload, self._headers, method=method)
            response: HTTPResponse = _opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            raise _declined(error) from None
        except (OSError, HTTPException, ValueError) as error:
            raise unreachable(self.base_url, error) from None
        return response


def unreachable(base_url: str, error: Exception) -> Unreachable:
    """Nobody answers there, for the reason that `error` has."""
    reason = getattr(error, "reason", None) or error
    code = getattr(reason, "errno", None)  # what goes with it may be a tuple, an address, or the number again
    told = os.strerror(code) if isinstance(code, int) and code > 0 else getattr(reason, "strerror", None) or str(reason)
    return Unreachable(f"No answer from {base_url}: {told.removesuffix('.')}. Does the server run, and is that its address?")


def _declined(error: urllib.error.HTTPError) -> UpstreamTrouble:
    """What the server said instead of an answer."""
    with error:
        text = error.read()
    try:
        fault = _object(text)["error"]
        told = fault["message"]
        if error.code == HTTPStatus.UNAUTHORIZED:
            told = f"{told.partition('. ')[0].removesuffix('.')}. {_KEY_WANTED}"
        return UpstreamTrouble(told, code=fault.get("code"), param=fault.get("param"), status=error.code)
    except (UpstreamTrouble, KeyError, TypeError, AttributeError):
        return UpstreamTrouble(f"The server at {error.url} answered {error.code} {error.reason}.", status=error.code)


def _object(text: bytes | str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UpstreamTrouble(f"What came is no JSON object: {error}.") from None
