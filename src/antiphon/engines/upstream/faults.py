"""
An upstream's errors, as errors of this API.

A wrong key or address is the operator's mistake, not the client's: the client gets a 502 that says so. What the
upstream says about the request itself is passed on in its own words. What it says about itself may name its paths, hosts
and users: that goes to the operator alone, as the error's `operator_message`.
"""

import datetime
import email.utils
import re
import time
from collections.abc import Mapping

import msgspec

from antiphon.errors import ApiError, ClientError, UpstreamError, shorten

_TOO_LONG = re.compile(
    r"maximum context length"  # OpenAI, vLLM, SGLang, Mistral
    r"|context length (?:is|of) only"  # vLLM, LM Studio
    r"|maximum prompt length is"  # xAI
    r"|exceeds? the available context size"  # llama.cpp
    r"|context size has been exceeded"  # llama.cpp, while generating
    r"|longer than the (?:model's )?context length"  # SGLang, Together, Ollama
    r"|exceeded max context length"  # Ollama
    r"|input length exceeds the context length"  # Ollama
    r"|(?:to keep from the initial prompt is )?greater than the context length"  # LM Studio
    r"|exceed(?:s|ed)? (?:the |model's |this model's )*(?:context (?:window|length)|maximum allowed input length|max_model_len)"
    r"|decoder prompt \(length \d+\) is longer"  # vLLM
    r"|prompt is too long",
    re.IGNORECASE,
)

_NO_MODEL = re.compile(
    r"\bmodel\b.*(?:not found|does not exist|not exist|no such)|no such model|model_not_found", re.IGNORECASE | re.DOTALL
)


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error for a response with an error status."""
    message, code, param = parse_error_body(body)
    if is_input_too_long(message, code):
        return input_too_long(message)
    if status == 404 and _NO_MODEL.search(f"{code} {message}"):
        return ClientError(message, code="model_not_found", param="model", status=404)
    if status in (400, 409, 413, 422):
        is_message = message and not _STACK_TRACE.search(message)
        return ClientError(message if is_message else f"The model server refused the request ({status}).", code=code, param=param)
    return _for_operator(_failure_error(status, code, retry_after_s(headers)), message)


def _failure_error(status: int, code: str | None, after_s: float | None) -> ApiError:
    """The error for a status that says nothing about the request."""
    match status:
        case 401 | 403:
            return UpstreamError(
                f"The model server refused this server's credentials ({status}). Only this server's operator can fix that.",
                code="upstream_credentials",
            )
        case 429:
            is_quota = code == "insufficient_quota"
            return ApiError(
                "This server's quota at the model server is used up. Only this server's operator can change that."
                if is_quota
                else "The model server takes no more requests at the moment. Please try again later.",
                status=429,
                type="rate_limit_error",
                code="insufficient_quota" if is_quota else "rate_limit_exceeded",
                retry_after_s=after_s,
            )
        case 503:
            return overloaded_error("The model server is overloaded or not ready. Please try again later.", after_s)
        case 408 | 504:
            return UpstreamError("The model server ran out of time. Please try again later.", status=504, code="upstream_timeout")
        case _:
            return UpstreamError(f"The model server failed ({status}). {_WHAT_TO_DO}", code="server_error")


_WHAT_TO_DO = "Please try again later. The operator finds the reason in this server's log."


def _for_operator(error: ApiError, message: str) -> ApiError:
    """The error, with the upstream's own words for the operator."""
    if message:
        error.operator_message = message
    return error


def overloaded_error(message: str, retry_after_s: float | None) -> UpstreamError:
    """A 503 that invites to try again."""
    return UpstreamError(message, status=503, code="server_is_overloaded", type="service_unavailable_error", retry_after_s=retry_after_s)


def error_from_stream(error: object) -> ApiError:
    """The error for an `error` in the middle of a stream, whatever its shape."""
    message, code, param = _error_fields(error)
    if is_input_too_long(message, code):
        return input_too_long(message)
    status = _status_code(error)
    if status is not None and status >= 400:
        return error_from_response(status, {}, msgspec.json.encode({"error": {"message": message, "code": code, "param": param}}))
    return _for_operator(UpstreamError(f"The model server failed. {_WHAT_TO_DO}", code=code or "server_error"), message)


def input_too_long(message: str) -> ClientError:
    """The input does not fit the model's context window; `message` has the upstream's figures."""
    return ClientError(
        f"Your input exceeds the context window of this model. Please adjust your input and try again. ({shorten(message, 300)})",
        code="context_length_exceeded",
        param="input",
    )


def is_input_too_long(message: str, code: str | None) -> bool:
    """Whether an upstream's error means that the input does not fit the context window."""
    return code in ("context_length_exceeded", "exceed_context_size_error") or _TOO_LONG.search(message) is not None


def parse_error_body(body: bytes) -> tuple[str, str | None, str | None]:
    """Message, code and param of an error body; empty for one that is not JSON, such as a proxy's HTML page."""
    try:
        return _error_fields(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        return "", None, None


def _error_fields(error: object) -> tuple[str, str | None, str | None]:
    """
    Message, code and param of an error in any of the shapes in use.

    `{"error": {"message": …}}` is OpenAI's; `{"error": "…"}` LM Studio's and Ollama's; `{"object": "error", "message":
    …}` older vLLM's; `{"detail": …}` FastAPI's own; `[{"error": …}]` Google's.
    """
    if isinstance(error, list) and len(error) == 1:
        error = error[0]
    while isinstance(error, dict) and "error" in error:
        error = error["error"]
    if not isinstance(error, dict):
        return (error, None, None) if isinstance(error, str) else ("", None, None)
    text = error.get("message") or error.get("detail") or ""
    message = text if isinstance(text, str) else msgspec.json.encode(text).decode()
    kinds = (error.get("code"), error.get("type"))
    code = next((kind for kind in kinds if isinstance(kind, str) and re.fullmatch(r"[a-z][a-z0-9_]{2,63}", kind)), None)
    param = error.get("param")
    return shorten(message, 2000), None if code in _ERROR_TYPES else code, param if isinstance(param, str) else None


_ERROR_TYPES = ("invalid_request_error", "api_error", "not_found_error", "server_error")
"""Error types that some servers send as `code`; they are no codes."""


def _status_code(error: object) -> int | None:
    """The HTTP status that an error names: vLLM, SGLang and llama.cpp send it as a number in `code`."""
    code = (error.get("code") or error.get("status")) if isinstance(error, dict) else None
    if isinstance(code, str) and re.fullmatch(r"[1-5][0-9]{2}", code):
        return int(code)
    return code if isinstance(code, int) and 100 <= code < 600 else None


_STACK_TRACE = re.compile(r"Traceback \(most recent call last\)|^\s*File \"[^\"]+\", line [0-9]+|^goroutine [0-9]+ \[", re.MULTILINE)
"""How a stack trace begins in Python and Go: it shows the paths and addresses of the upstream's machine."""


MAX_RETRY_AFTER_S = 86_400.0
"""Longer waits are cut to a day."""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds in `Retry-After-Ms` or `Retry-After`, a number or a date (RFC 9110 10.2.3); at most a day."""
    seconds = _parse_seconds(headers.get("retry-after-ms", ""), 1000) or _parse_seconds(headers.get("retry-after", ""), 1)
    if seconds is None:
        seconds = _seconds_until(headers.get("retry-after", ""))
    return None if seconds is None else min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def _parse_seconds(value: str, units_per_second: int) -> float | None:
    return float(value) / units_per_second if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", value.strip()) else None


def _seconds_until(value: str) -> float | None:
    try:
        moment = email.utils.parsedate_to_datetime(value)
        return moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
