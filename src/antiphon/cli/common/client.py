"""A small HTTP client of the server's APIs, on the standard library: an SDK would load too slowly."""

import contextlib
import functools
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from antiphon.cli.common.shell import Shell, UsageError
from antiphon.errors import ClientError, UpstreamError, shorten
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.sse import SseParser
from antiphon.wire.codec.types import JsonDict, Wire

W = TypeVar("W", bound=Wire)

RESPONSE_TIMEOUT_S = 600  # a slow machine may need this long until the first token
PROBE_TIMEOUT_S = 5

_MAX_EVENT_BYTES = 64 << 20  # the last event of a stream carries the whole response
_CHUNK_BYTES = 1 << 16

_KEY_HINT = (
    "Put a key into ANTIPHON_API_KEY, or into OPENAI_API_KEY where OPENAI_BASE_URL names the server; `antiphon keys create` makes keys."
)
"""It replaces the server's own hint, which names the header to send: in a terminal one sets a variable."""

_TRUST_HINT = (
    "If you trust that server, name the file of its authority in ANTIPHON_CA_FILE; one that made its own has it in `tls/ca.crt` "
    "in its home folder, and at /ca.crt."
)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within a server: by default any is followed, with the key, which is not for others."""

    def redirect_request(
        self,
        request: urllib.request.Request,
        response: IO[bytes],
        code: int,
        message: str,
        headers: HTTPMessage,
        url: str,
    ) -> urllib.request.Request | None:
        if urlsplit(url)[:2] != urlsplit(request.full_url)[:2]:
            return None
        return super().redirect_request(request, response, code, message, headers, url)


class ServerUnreachable(UpstreamError):
    """Nothing answers at the address."""


class NoModelsError(UpstreamError):
    """The server lists no models."""


class ApiClient:
    """
    A client of one server.

    Args:
        base_url: with or without `/v1` at the end.
        key: the bearer token, if any.
        is_probe: it only asks whether the key is valid, which does not count as a use of it.
        ca_file: an authority to trust besides the system's.
    """

    def __init__(self, base_url: str, key: str | None = None, *, is_probe: bool = False, ca_file: Path | None = None) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.key = key
        self.ca_file = ca_file
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        if is_probe:
            self._headers["Antiphon-Probe"] = "1"

    def get(self, path: str, timeout_s: float = PROBE_TIMEOUT_S) -> JsonDict:
        """The JSON answer to a GET."""
        with self._answer(path, None, timeout_s) as response:
            return _decode_object(response.read())

    def post(self, path: str, body: JsonDict) -> JsonDict:
        """The JSON answer to a POST."""
        with self._answer(path, body, RESPONSE_TIMEOUT_S) as response:
            return _decode_object(response.read())

    def delete(self, path: str) -> JsonDict:
        """The JSON answer to a DELETE."""
        with self._answer(path, None, PROBE_TIMEOUT_S, "DELETE") as response:
            return _decode_object(response.read())

    def read(self, path: str, kind: type[W]) -> W:
        """
        The answer to a GET, as a wire type.

        Raises:
            UpstreamError: also for an answer that is no such object.
        """
        with self._answer(path, None, PROBE_TIMEOUT_S) as response:
            try:
                return Reader[W](kind).read(response.read())
            except ClientError as error:
                raise UpstreamError(f"The server's answer to {path} can't be read: {error.message}") from None

    def get_file(self, path: str) -> bytes:
        """The bytes of a file."""
        with self._answer(path, None, RESPONSE_TIMEOUT_S) as response:
            return response.read()

    def stream(self, path: str, body: JsonDict) -> Iterator[JsonDict]:
        """The events of a streamed answer to a POST, as they arrive."""
        with self._answer(path, {**body, "stream": True}, RESPONSE_TIMEOUT_S) as response:
            parser = SseParser(_MAX_EVENT_BYTES)
            while chunk := response.read1(_CHUNK_BYTES):
                # `[DONE]` ends some streams, and is no JSON.
                yield from (_decode_object(event) for event in parser.feed(chunk) if event != b"[DONE]")

    def list_models(self) -> list[str]:
        """The names of the server's models."""
        return [model["id"] for model in self.get("/v1/models")["data"]]

    def has_model(self, name: str) -> bool:
        """Whether the server has a model of that name; also true where it can't be asked, as it has no such route."""
        try:
            self.get(f"/v1/models/{quote(name, safe='')}")
        except UpstreamError as error:
            return error.code != "model_not_found"
        return True

    def first_model(self) -> str:
        """
        The server's first model, which answers by default.

        Raises:
            NoModelsError: the server has none.
        """
        models = self.list_models()
        if not models:
            raise NoModelsError(f"The server at {self.base_url} lists no models, so there is none to choose. Name one with --model.")
        return models[0]

    def is_alive(self) -> bool:
        """Whether an antiphon server answers."""
        try:
            return self.get("/version").get("name") == "antiphon"
        except UpstreamError:
            return False

    def needs_tls(self) -> bool:
        """Whether a server answers that has to be asked by HTTPS."""
        try:
            self.get("/version")
        except UpstreamError as error:
            return error.code == "tls_required"
        return False

    @functools.cached_property
    def tls(self) -> ssl.SSLContext:
        """
        The authorities to trust: the system's and `ca_file`.

        Raises:
            UsageError: `ca_file` is no certificate.
        """
        context = ssl.create_default_context()
        if self.ca_file is not None:
            try:
                context.load_verify_locations(self.ca_file)
            except OSError as error:  # `ssl.SSLError` is one
                raise UsageError(f"There is no certificate in {self.ca_file}: {error.strerror or error}.") from None
        return context

    @functools.cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        # Without proxies: the server is on this machine, or named by address.
        handlers = [urllib.request.HTTPSHandler(context=self.tls)] if self.base_url.startswith("https:") else []
        return urllib.request.build_opener(urllib.request.ProxyHandler({}), _Redirects(), *handlers)

    @contextlib.contextmanager
    def _answer(self, path: str, body: JsonDict | None, timeout_s: float, method: str | None = None) -> Iterator[HTTPResponse]:
        """The answer, to be read within the context: a server may stop in the middle of it."""
        with self._open(path, body, timeout_s, method) as response:
            try:
                yield response
            except (OSError, HTTPException):
                raise ServerUnreachable(f"The server at {self.base_url} sent only a part of {path}.") from None

    def _open(self, path: str, body: JsonDict | None, timeout_s: float, method: str | None = None) -> HTTPResponse:
        payload = msgspec.json.encode(body) if body is not None else None
        try:
            request = urllib.request.Request(self.base_url + path, payload, self._headers, method=method)
            response: HTTPResponse = self._opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            raise _status_error(error) from None
        except (OSError, HTTPException, ValueError) as error:
            raise unreachable_error(self.base_url, error) from None
        return response


def path_segment(what: str, value: str) -> str:
    """
    A name or an id, escaped for a path.

    Args:
        what: it is, beginning a sentence, such as `A recording's id`.

    Raises:
        UsageError: it can't be one, and would lead to another path.
    """
    if not value.isprintable() or not value.strip() or value in (".", "..") or re.search(r"[/\\]", value):
        raise UsageError(f"{what} is a word without slashes; got {shorten(value)!r}.")
    return quote(value, safe="")


def check_answer_status(status: str | None, reason: str | None, shell: Shell) -> None:
    """
    Say how an answer ended, if it is not complete.

    Raises:
        UpstreamError: the model failed.
    """
    if status == "failed":
        raise UpstreamError(f"The model failed: {reason or 'it gave no reason'}")
    if status == "incomplete":
        shell.note(f"the answer was cut off: {reason}")


def unreachable_error(base_url: str, error: Exception) -> ServerUnreachable:
    """An error that says why the server can't be reached."""
    reason = getattr(error, "certificate_error", None) or getattr(error, "reason", None) or error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ServerUnreachable(f"The certificate of {base_url} can't be trusted: {reason.verify_message}. {_TRUST_HINT}")
    if isinstance(reason, ssl.SSLError):
        return ServerUnreachable(f"No answer from {base_url} by TLS: {reason.reason or reason}. Does that server speak HTTPS?")
    code = getattr(reason, "errno", None)  # its other arguments may be a tuple, an address, or the number again
    text = os.strerror(code) if isinstance(code, int) and code > 0 else getattr(reason, "strerror", None) or str(reason)
    return ServerUnreachable(f"No answer from {base_url}: {text.removesuffix('.')}. Does the server run, and is that its address?")


def _status_error(error: urllib.error.HTTPError) -> UpstreamError:
    with error:
        text = error.read()
    try:
        body = _decode_object(text)["error"]
        message = body["message"]
        if error.code == HTTPStatus.UNAUTHORIZED:
            message = f"{message.partition('. ')[0].removesuffix('.')}. {_KEY_HINT}"
        return UpstreamError(message, code=body.get("code"), param=body.get("param"), status=error.code)
    except (UpstreamError, KeyError, TypeError, AttributeError):
        elsewhere = f" It leads to {shorten(location)}." if (location := error.headers.get("location")) else ""
        return UpstreamError(f"The server at {error.url} answered {error.code} {error.reason}.{elsewhere}", status=error.code)


def _decode_object(text: bytes | str) -> JsonDict:
    try:
        return msgspec.json.decode(text, type=JsonDict)
    except msgspec.DecodeError as error:
        raise UpstreamError(f"The server sent no JSON object: {error}.") from None
