"""
A client's own request, made fit for the model's server: as it came, but for what this server must decide itself.

Only the fields that are named here are decoded; all others keep their place, their order and their spelling: `1.0`
stays `1.0`, null stays null.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw

from antiphon.engine_api import commands
from antiphon.engine_api.engine import Fetch
from antiphon.engines.chat.media import inline_urls
from antiphon.engines.chat.quirks import Quirks
from antiphon.engines.chat.request import BLOCKED_KEYS, BLOCKED_TEMPLATE_ARGUMENTS, OWN_KEYS
from antiphon.errors import ClientError, invalid_type, invalid_url, unparsable_json
from antiphon.offload import LARGE_BYTES, offload
from antiphon.wire.codec.media_urls import MEDIA_URL_BEGINNINGS

RELAYS = ("chat/completions", "completions", "embeddings")
"""The paths of a server with chat completions that requests are passed on to."""

Fields = dict[str, Raw]

RELAY_BLOCKED_KEYS = BLOCKED_KEYS - OWN_KEYS
"""A request that is passed on has all that its API has itself."""

_TEMPLATE_KEY = "chat_template_kwargs"
_NULL = b"null"
_MEDIA_KEY = re.compile(r"(?:image|audio|video|document|file|media|ur[li]|path|(?<!meta)data)s?$")
"""Fields of a part that servers take media in: a URL, base64, or several of these, in an object or a list as well."""

_LOCATION_KEY = re.compile(r"(?:ur[li]|path)s?$")
_PICTURE_KEY = re.compile(r"(?:input_)?(?:image|audio|video)s?$")
_REMOTE_URL = re.compile(r"https?://", re.IGNORECASE)
_INLINE_URL = re.compile(r"data:", re.IGNORECASE)

T = TypeVar("T")


def decode_fields(body: bytes) -> Fields:
    """
    The fields of a request.

    Raises:
        ClientError: it is not JSON, or no object.
    """
    try:
        if not body.isascii():
            body.decode()  # what stays undecoded is not checked
        return msgspec.json.decode(body, type=Fields)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unparsable_json(str(error)) from None


async def relay_body(
    relay: commands.Relay, model: str, quirks: Quirks, fetch: Fetch, *, pass_image_urls: bool
) -> tuple[bytes, Mapping[str, Raw]]:
    """
    The body for the model's server, and the fields that the client sent.

    Args:
        pass_image_urls: the upstream fetches images itself.

    Raises:
        ClientError: it is not JSON, or names something that can't or may not be fetched.
    """
    size_bytes = len(relay.body)
    fields = await offload(size_bytes, decode_fields, relay.body)
    urls = await offload(size_bytes, _media_urls, fields)
    to_fetch = {url: key for url, key in urls.items() if not pass_image_urls or not _is_image(key)}
    try:
        data_urls = await inline_urls(to_fetch, fetch)
    except ClientError as error:
        error.param = "messages" if error.param == "input" else error.param
        raise
    return await offload(size_bytes, _encode, fields, relay, model, quirks, data_urls), fields


def relay_body_at_once(
    relay: commands.Relay, model: str, quirks: Quirks, *, pass_image_urls: bool
) -> tuple[bytes, Mapping[str, Raw]] | None:
    """
    The same for a request that is small and names nothing to be fetched; None for others.

    Raises:
        ClientError: it is not JSON.
    """
    if len(relay.body) >= LARGE_BYTES:
        return None
    fields = decode_fields(relay.body)
    if any(not pass_image_urls or not _is_image(key) for key in _media_urls(fields).values()):
        return None
    return _encode(fields, relay, model, quirks, {}), fields


def _is_image(key: str) -> bool:
    return key.startswith(("image", "input_image"))


def _encode(fields: Fields, relay: commands.Relay, model: str, quirks: Quirks, data_urls: Mapping[str, str]) -> bytes:
    upstream_fields = {key: value for key, value in fields.items() if key not in RELAY_BLOCKED_KEYS}
    upstream_fields["model"] = _raw(model)
    if _TEMPLATE_KEY in upstream_fields and (arguments := _decode(upstream_fields[_TEMPLATE_KEY], Fields)) is not None:
        upstream_fields[_TEMPLATE_KEY] = _raw({key: value for key, value in arguments.items() if key not in BLOCKED_TEMPLATE_ARGUMENTS})
    if (messages := _decode(upstream_fields.get("messages"), list[Raw])) is not None:
        upstream_fields["messages"] = _raw([_message(message, quirks, data_urls) for message in messages])
    if data_urls and (inputs := _decode(upstream_fields.get("input"), list[Raw])) is not None:
        upstream_fields["input"] = _raw([_part(part, data_urls) for part in inputs])
    if relay.path != "embeddings":
        upstream_fields = _fit(upstream_fields, quirks) if relay.path == "chat/completions" else upstream_fields
        if relay.stream:
            upstream_fields["stream"] = Raw(b"true")  # the client may have wanted the answer as a whole
            options = _decode(upstream_fields.get("stream_options"), Fields) or {}
            upstream_fields["stream_options"] = _raw(options | {"include_usage": Raw(b"true")})
    return msgspec.json.encode(upstream_fields)


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def _decode(raw: Raw | None, kind: type[T]) -> T | None:
    """The value, or None if it is missing or of another type: whether that is wrong, the model's server says."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        return None


# What differs between servers


def _fit(fields: Fields, quirks: Quirks) -> Fields:
    for edit in (_rename_output_limit, _allow_tools):
        fields = edit(fields, quirks)
    return fields


def _rename_output_limit(fields: Fields, quirks: Quirks) -> Fields:
    right = quirks.max_tokens_field
    wrong = "max_tokens" if right == "max_completion_tokens" else "max_completion_tokens"
    if wrong not in fields or bytes(fields.get(right, Raw(_NULL))) != _NULL or bytes(fields[wrong]) == _NULL:
        return fields
    return {right if key == wrong else key: value for key, value in fields.items() if key != right}


class _Name(msgspec.Struct, frozen=True):
    name: str = ""


class _ToolReference(msgspec.Struct, frozen=True):
    type: str = "function"
    function: _Name = _Name()
    custom: _Name = _Name()

    @property
    def key(self) -> tuple[str, str]:
        return self.type, self.custom.name if self.type == "custom" else self.function.name


class _AllowedTools(msgspec.Struct, frozen=True):
    mode: str = "auto"
    tools: tuple[_ToolReference, ...] = ()


class _Choice(_ToolReference, frozen=True):
    allowed_tools: _AllowedTools = _AllowedTools()


def _allow_tools(fields: Fields, quirks: Quirks) -> Fields:
    """Tools that may not be called are left out where the server doesn't know that form of `tool_choice`."""
    choice, tools = _decode(fields.get("tool_choice"), _Choice), _decode(fields.get("tools"), list[Raw])
    if choice is None or tools is None or quirks.tool_choice == "openai":
        return fields
    if choice.type == "allowed_tools":
        mode, keys = choice.allowed_tools.mode, {tool.key for tool in choice.allowed_tools.tools}
    elif quirks.tool_choice != "named":
        mode, keys = "required", {choice.key}
    else:
        return fields
    references = [_decode(tool, _ToolReference) for tool in tools]
    callable_tools = [tool for tool, reference in zip(tools, references, strict=True) if reference is None or reference.key in keys]
    fields = fields | {"tools": _raw(callable_tools), "tool_choice": _raw(mode)}
    return {key: value for key, value in fields.items() if key != "tool_choice" or quirks.tool_choice != "none"}


_REASONING_FIELDS = ("reasoning_content", "reasoning")


def _message(raw: Raw, quirks: Quirks, data_urls: Mapping[str, str]) -> Raw:
    message = _decode(raw, Fields)
    if message is None:
        return raw
    result = dict(message)
    role = _decode(message.get("role"), str)
    if role == "developer" and not quirks.developer_role:
        result["role"] = _raw("system")
    name = quirks.reasoning_field
    if name is not None and role == "assistant" and name not in message:
        result = {name if key in _REASONING_FIELDS else key: value for key, value in result.items()}
    if (parts := _decode(message.get("content"), list[Raw])) is not None:
        result["content"] = _raw([_part(part, data_urls) for part in parts])
    # Encoded anew even if it has not changed: a key that came twice was checked once, and servers differ in which one counts.
    return _raw(result)


# Media


def _media_urls(fields: Fields) -> dict[str, str]:
    """The URLs of media in all messages and inputs, with the name of the field that each came in."""
    urls: dict[str, str] = {}
    for index, raw in enumerate(_decode(fields.get("messages"), list[Raw]) or ()):
        place = f"messages[{index}].content"
        content = (_decode(raw, Fields) or {}).get("content")
        if content is not None and _kind(content) == b"{":
            raise invalid_type(place, "one of a string or array of objects", "an object")
        for number, part in enumerate(_decode(content, list[Raw]) or ()):
            urls |= _part_urls(part, f"{place}[{number}]")
    inputs = fields.get("input")
    if inputs is not None and b"{" in bytes(inputs):
        for index, part in enumerate(_decode(inputs, list[Raw]) or (inputs,)):
            urls |= _part_urls(part, f"input[{index}]")
    return urls


def _kind(raw: Raw) -> bytes:
    """The first byte of a value, which tells its type."""
    return bytes(memoryview(raw)[:1])


def _part_urls(raw: Raw, place: str) -> dict[str, str]:
    # Only as far as needed: a number that can't be decoded must not hide a URL beside it.
    part = _decode(raw, Fields) if _kind(raw) == b"{" else None
    if part is None:
        return {}
    file = _decode(part.get("file"), Fields) or {}
    if bytes(file.get("file_id", Raw(_NULL))) != _NULL:
        # It would name a file of this server's account there, whichever tenant uploaded it.
        raise ClientError(
            f"Invalid '{place}.file.file_id': the model's server doesn't know this server's files. Send the file as 'file_data'.",
            code="invalid_value",
            param=f"{place}.file.file_id",
        )
    urls: dict[str, str] = {}
    for key, name, text in _media(part):
        if _REMOTE_URL.match(text) and not name.endswith("data"):
            urls[text] = next((f"{kind}_url" for kind in ("audio", "video", "file") if kind in key), key)
        elif _is_location(name, text) and not _INLINE_URL.match(text):
            # Some servers open what is neither as a file of theirs.
            raise invalid_url(f"{place}.{key}", *(("data:",) if name.endswith("data") else MEDIA_URL_BEGINNINGS))
    return urls


def _is_location(name: str, text: str) -> bool:
    """Whether a server may take a text for a URL or a path; base64 has neither colons nor dots."""
    return _LOCATION_KEY.search(name) is not None or "://" in text[:64] or (_PICTURE_KEY.match(name) is not None and "." in text)


def _media(part: Fields) -> Iterator[tuple[str, str, str]]:
    """The texts of a part in which media can be, each with the part's field and its own."""
    for key, value in part.items():
        if _MEDIA_KEY.search(key):
            for name, text in _texts(key, value):
                yield key, name, text


def _texts(name: str, value: Raw) -> Iterator[tuple[str, str]]:
    if _kind(value) == b'"':
        yield name, msgspec.json.decode(value, type=str)
    for key, element in _inner_media(name, value):
        yield from _texts(key, element)


def _inner_media(name: str, value: Raw) -> Iterator[tuple[str, Raw]]:
    """The elements of a list, with its name, or the fields of an object that may have media."""
    if _kind(value) == b"[":
        yield from ((name, element) for element in msgspec.json.decode(value, type=list[Raw]))
    elif _kind(value) == b"{":
        yield from (item for item in msgspec.json.decode(value, type=Fields).items() if _MEDIA_KEY.search(item[0]))


def _part(raw: Raw, data_urls: Mapping[str, str]) -> Raw:
    """A part with data URLs, and with each key once if it has media."""
    part = _decode(raw, Fields) if _kind(raw) == b"{" else None
    if part is None or not any(_MEDIA_KEY.search(key) for key in part):
        return raw
    return _raw({key: _inline(value, data_urls) if _MEDIA_KEY.search(key) else value for key, value in part.items()})


def _inline(value: Raw, data_urls: Mapping[str, str]) -> Raw:
    if _kind(value) == b'"':
        data_url = data_urls.get(msgspec.json.decode(value, type=str)) if data_urls else None
        return value if data_url is None else _raw(data_url)
    if _kind(value) == b"[":
        return _raw([_inline(element, data_urls) for element in msgspec.json.decode(value, type=list[Raw])])
    if _kind(value) == b"{":
        inner = {key: _inline(element, data_urls) for key, element in _inner_media("", value)}
        return _raw(msgspec.json.decode(value, type=Fields) | inner)
    return value


def wants_usage(fields: Mapping[str, Raw]) -> bool:
    """Whether the client has asked for usage in its stream."""
    options = _decode(fields.get("stream_options"), Fields) or {}
    return bytes(options.get("include_usage", Raw(_NULL))) == b"true"


def choice_count(fields: Mapping[str, Raw]) -> int:
    """How many answers the client has asked for."""
    return max(1, _decode(fields.get("n"), int) or 1)


def asked_model(fields: Mapping[str, Raw], default: str) -> str:
    """The name of the model in the client's request."""
    return _decode(fields.get("model"), str) or default
