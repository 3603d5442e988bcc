"""The prompts that requests name: those of the tenant in the store, and those of the configuration."""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from antiphon.config.load import Config
from antiphon.config.settings import PROMPT_PREFIX, PromptEntry
from antiphon.errors import ApiError, ClientError, ServerError, prompt_not_found, wrong_id_prefix
from antiphon.offload import offload
from antiphon.protocols.responses.prompts import FilledRequest, fill_request, variable_names
from antiphon.stores.base import PromptStore
from antiphon.wire.codec.fields import is_set
from antiphon.wire.responses.prompts import MAX_TEMPLATE_BYTES, PromptTemplate, decode_template
from antiphon.wire.responses.request import CreateRequest, Prompt


class PromptVersion(Struct, frozen=True):
    """
    A version of a prompt.

    Attributes:
        version: its number, as requests name it.
        body: the template as JSON.
    """

    version: str
    template: PromptTemplate
    body: bytes


class PromptLibrary:
    """
    Finds prompts. Of two with the same id, a tenant gets its own one.

    Args:
        entries: the prompts of the configuration.

    Raises:
        ServerError: one of them is invalid; the message says which.
    """

    def __init__(self, store: PromptStore, entries: Sequence[PromptEntry]) -> None:
        self._store = store
        self._versions = {(entry.id, entry.version): configured_version(entry) for entry in entries}
        self._default_versions = default_versions(entries)

    async def find(self, tenant: str, prompt: Prompt, param: str = "prompt") -> PromptVersion:
        """
        The version of a prompt that a request names.

        Args:
            param: the field with the prompt.

        Raises:
            ApiError: there is none, or the store failed.
        """
        if not prompt.id.startswith(PROMPT_PREFIX):
            raise wrong_id_prefix(f"{param}.id", prompt.id, PROMPT_PREFIX)
        version = prompt.version or None
        number = int(version) if version and re.fullmatch(r"[1-9]\d{0,9}", version, re.ASCII) else None
        if version is not None and number is None:
            raise prompt_not_found(prompt.id, version)
        record = await self._store.version(tenant, prompt.id, number)
        if record is not None:
            return PromptVersion(str(record.version), await _decode(prompt.id, record.body), record.body)
        prompt_version = self._versions.get((prompt.id, number or self._default_versions.get(prompt.id, 0)))
        if prompt_version is None:
            # Whether the prompt is missing, or only its version, is asked for the error alone.
            is_known = prompt.id in self._default_versions or await self._store.find(tenant, prompt.id)
            raise prompt_not_found(prompt.id, version if is_known else None)
        return prompt_version

    async def fill(self, tenant: str, request: CreateRequest, size_bytes: int) -> FilledRequest:
        """
        The request with all that its prompt brings; the same one, if it has none.

        Args:
            size_bytes: of the request's JSON.

        Raises:
            ApiError: there is no such prompt, or its variables are wrong, or the store failed.
        """
        if not is_set(request.prompt):
            return FilledRequest(request, 0)
        prompt_version = await self.find(tenant, request.prompt)
        filled_bytes = len(prompt_version.body) + size_bytes * prompt_version.body.count(b"{{")  # at most, before `fill_request` counts
        return await offload(filled_bytes, fill_request, request, prompt_version.template, prompt_version.version)


async def _decode(prompt_id: str, body: bytes) -> PromptTemplate:
    try:
        return await offload(len(body), decode_template, body)
    except ClientError as error:  # it was checked when it was stored: by a newer version, maybe
        raise ServerError(f"This server can't read the prompt '{prompt_id}': {error.message}") from None


def prompt_problems(config: Config) -> Iterator[str]:
    """What is wrong with the prompts of a configuration; one line each, with its place."""
    for index, entry in enumerate(config.prompts):
        try:
            configured_version(entry)
        except ServerError as error:
            yield config.locate(f"prompts[{index}].{error.param or ''}", error.message)


def configured_version(entry: PromptEntry) -> PromptVersion:
    """
    A prompt of the configuration.

    Raises:
        ServerError: it is invalid.
    """
    try:
        body, template = encode_content(entry.content)
    except ApiError as error:
        raise ServerError(f"Prompt '{entry.id}' (version {entry.version}): {error.message}", param=error.param) from None
    return PromptVersion(str(entry.version), template, body)


def encode_content(content: Mapping[str, object]) -> tuple[bytes, PromptTemplate]:
    """
    The content of a prompt from plain values, as JSON and decoded.

    Raises:
        ApiError: it is invalid.
    """
    try:
        body = msgspec.json.encode(content)
    except TypeError as error:
        raise ServerError(f"It has a value that JSON does not have: {error}.") from None
    if len(body) > MAX_TEMPLATE_BYTES:
        raise ServerError(f"It is larger than {MAX_TEMPLATE_BYTES >> 20} MiB.")
    return body, decode_template(body)


def list_variables(body: bytes) -> list[str]:
    """The variables of a stored version; none where only a newer version of antiphon can read it."""
    try:
        return [*variable_names(decode_template(body))]
    except ApiError:
        return []


def default_versions(entries: Sequence[PromptEntry]) -> Mapping[str, int]:
    """The default version of each prompt of the configuration, by id: the one that says so, else the highest."""
    explicit = {entry.id: entry.version for entry in entries if entry.default}
    return {entry.id: entry.version for entry in sorted(entries, key=lambda entry: entry.version)} | explicit
