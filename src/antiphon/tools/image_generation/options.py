"""The options of the tool `image_generation`: checked, and as a server takes them."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from antiphon.config.tools.images import ImageField, ImagesEntry
from antiphon.errors import (
    ClientError,
    above_maximum,
    below_minimum,
    invalid_value,
    mutually_exclusive,
    pattern_mismatch,
    unsupported_parameter,
)
from antiphon.wire.responses import tools as wire_tools

Action = Literal["generate", "edit", "auto"]

SIZE_PATTERN = r"^(auto|[1-9]\d{0,4}x[1-9]\d{0,4})$"

MIN_FRAMES, MAX_FRAMES = 2, 16
MAX_FRAME_DURATION_MS = 655_350
"""What a GIF can say. Source: `frame_duration_ms` in the Images API."""

_ESSENTIAL_FIELDS: tuple[ImageField, ...] = ("background", "output_format", "size", "svg", "frame_count", "frame_duration_ms")
"""Fields that a server must take if a request has them: without one the picture is another. All others are hints."""

_SERVER_DEFAULTS: dict[str, object] = {"background": "auto", "size": "auto", "output_format": "png"}
"""Values that a server may be spared, as it does the same without them."""


class ImageOptions(Struct, frozen=True, kw_only=True):
    """
    Checked options.

    Attributes:
        entry: the server.
        model: what the server calls the model.
        path: of the tool in the request.
        fields: of requests to the server, `partial_images` not among them.
        partial_images: how many pictures are asked for before the final one.
        mask: where a picture may change; None for anywhere.
    """

    entry: ImagesEntry
    model: str
    path: str
    action: Action = "auto"
    fields: dict[str, Any] = {}
    partial_images: int = 0
    mask: wire_tools.ImageMask | None = None

    @property
    def requires_pictures(self) -> bool:
        """Whether pictures are to be changed, and none made from nothing."""
        return self.action == "edit" or self.mask is not None


def read_options(tool: wire_tools.ImageGenerationTool, path: str, entries: Sequence[ImagesEntry]) -> ImageOptions:
    """
    The options of a tool.

    Args:
        path: of the tool in the request.
        entries: the servers; requests without a model go to the first.

    Raises:
        ClientError: an option is wrong, or doesn't fit another, or no server can do it.
    """
    values = _values(tool)
    _check_ranges(values, path)
    _check_formats(values, path)
    entry, model = _find_entry(values.get("model"), entries, path)
    action: Action = values.get("action", "auto")
    mask = tool.input_image_mask if isinstance(tool.input_image_mask, wire_tools.ImageMask) else None
    if mask is not None:
        _check_mask(mask, action, f"{path}.input_image_mask")
    if not entry.edits and (mask is not None or action == "edit"):
        raise unsupported_parameter(f"{path}.{'action' if mask is None else 'input_image_mask'}", entry.model)
    for name in _ESSENTIAL_FIELDS:
        if name in values and name not in entry.fields and values[name] != _SERVER_DEFAULTS.get(name):
            raise unsupported_parameter(f"{path}.{name}", entry.model)
    return ImageOptions(
        entry=entry,
        model=model,
        path=path,
        action=action,
        fields={name: values[name] for name in entry.fields if name in values and name != "partial_images"},
        partial_images=values.get("partial_images", 0) if "partial_images" in entry.fields else 0,
        mask=mask,
    )


def with_defaults(tool: wire_tools.ImageGenerationTool) -> dict[str, Any]:
    """The tool as the original shows it in responses: with its defaults."""
    defaults = {"background": "auto", "moderation": "auto", "n": 1, "output_compression": 100, "output_format": "png"}
    return {**defaults, "quality": "auto", "size": "auto", **_values(tool)}


def _values(tool: wire_tools.ImageGenerationTool) -> dict[str, Any]:
    """The fields that the tool sets, as plain JSON; those that are null are left out."""
    fields: dict[str, Any] = msgspec.json.decode(wire_tools.encode_tool(tool))
    return {name: value for name, value in fields.items() if value is not None}


def _find_entry(model: str | None, entries: Iterable[ImagesEntry], path: str) -> tuple[ImagesEntry, str]:
    """The server for a model, and the model's name there."""
    for entry in entries:
        prefix = entry.model.removesuffix("*")
        if model is None or model == entry.model or (prefix != entry.model and model.startswith(prefix)):
            return entry, entry.upstream_model or model or prefix
    raise invalid_value(f"{path}.model", model, (entry.model for entry in entries))


def _check_ranges(values: dict[str, Any], path: str) -> None:
    if not re.fullmatch(SIZE_PATTERN, values.get("size", "auto"), re.ASCII):
        raise pattern_mismatch(f"{path}.size", SIZE_PATTERN)
    for name, minimum, maximum in (("frame_count", MIN_FRAMES, MAX_FRAMES), ("frame_duration_ms", 1, MAX_FRAME_DURATION_MS)):
        if (number := values.get(name, minimum)) < minimum:
            raise below_minimum(f"{path}.{name}", "integer", minimum, number)
        if number > maximum:
            raise above_maximum(f"{path}.{name}", "integer", maximum, number)


def _check_formats(values: dict[str, Any], path: str) -> None:
    """Check what goes with which format. Source: the descriptions of the fields in openai-python, `ImageGeneration`."""
    format = values.get("output_format", "png")
    has_compression = values.get("output_compression", 100) != 100
    has_partials = values.get("partial_images", 0) > 0
    rules = (
        ("background", values.get("background") == "transparent", ("png", "webp"), "A transparent background"),
        ("frame_count", "frame_count" in values, ("gif",), "`frame_count`"),
        ("frame_duration_ms", "frame_duration_ms" in values, ("gif",), "`frame_duration_ms`"),
        ("svg", "svg" in values, ("svg",), "`svg`"),
        ("partial_images", has_partials, ("png", "webp", "jpeg"), "Partial images"),
        ("output_compression", has_compression, ("webp", "jpeg"), "Compression less than 100"),
        ("input_image_mask", "input_image_mask" in values, ("png", "webp", "jpeg", "svg"), "A mask"),
    )
    for name, is_given, formats, what in rules:
        if is_given and format not in formats:
            choices = " or ".join(f"'{each}'" for each in formats)
            raise ClientError(
                f"Invalid '{path}.{name}': {what} requires `output_format` to be {choices}, but it is '{format}'.",
                code="invalid_value",
                param=f"{path}.{name}",
            )


def _check_mask(mask: wire_tools.ImageMask, action: Action, path: str) -> None:
    has_url, has_id = mask.image_url not in (UNSET, None), mask.file_id not in (UNSET, None)
    if has_url and has_id:
        raise mutually_exclusive(path, ("image_url", "file_id"))
    if not has_url and not has_id:
        raise ClientError(f"Invalid '{path}': expected `file_id` or `image_url`.", code="invalid_value", param=path)
    if action == "generate":
        raise ClientError(
            f"Invalid '{path}': a mask says where a picture may change, so `action` must be 'edit' or 'auto'.",
            code="invalid_value",
            param=path,
        )
