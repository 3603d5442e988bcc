"""
The script of a scripted engine: its format, and how it is loaded.

`docs/reference/engine-scripted.md` describes every key.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.engine_api import events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.model_options import convert_options, describe_option_error
from antiphon.engines.scripted.voice import ScriptedRecordings
from antiphon.errors import ServerError

ALL_CAPABILITIES = Capabilities(
    images=True,
    files=True,
    audio_in=True,
    tools=True,
    custom_tools=True,
    grammars=True,
    json_object=True,
    json_schema=True,
    truncation=True,
    penalties=True,
    max_top_logprobs=20,
    efforts=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    summaries=True,
    encrypts_reasoning=True,
    verbosities=("low", "medium", "high"),
    counts_tokens=True,
    audio_out=True,
    listens=True,
    turn_detection=("server_vad", "semantic_vad"),
    transcribes=True,
    noise_reduction=("near_field", "far_field"),
    full_duplex=True,
    sees=True,
)


class ScriptedError(Struct, frozen=True, forbid_unknown_fields=True):
    """An error outside the answers; the fields of `EngineError`."""

    message: str = "The script says so."
    code: str | None = "server_error"
    type: str = "server_error"


class ScriptedFailure(ScriptedError, frozen=True):
    """How a scripted answer fails; the fields of `ResponseFailed`."""

    status: int = 500
    param: str | None = None
    retry_after_s: float | None = None


class ScriptedTranscriptFailure(ScriptedError, frozen=True):
    """How transcribing a turn fails; the fields of `InputTranscriptFailed`."""

    code: str | None = "transcription_failed"


class ScriptedUsage(Struct, frozen=True, forbid_unknown_fields=True):
    """The tokens that a scripted answer claims to use; the fields of `Usage`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    input_audio_tokens: int = 0
    input_image_tokens: int = 0
    output_audio_tokens: int = 0
    cached_audio_tokens: int = 0


class ScriptLine(Struct, frozen=True, forbid_unknown_fields=True):
    """
    One thing to say or do: exactly one field of the first group is set.

    Attributes:
        text: part of the answer, sent word by word at the script's pace; spoken if the answer has a voice.
        sound: a WAV file to play if the answer has a voice; `text` beside it holds its words.
        aloud_ms: a tone of that length if the answer has a voice.
        metrics: metrics of what comes next.
        call: name of a tool to call, with `arguments` (a table, or text as it is), or with `input` for a custom tool.
        wait_ms: a pause.
        repeat: how often to play the line.
    """

    text: str | None = None
    sound: str | None = None
    aloud_ms: float | None = None
    reasoning: str | None = None
    summary: str | None = None
    encrypted_content: str | None = None
    refusal: str | None = None
    annotation: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    call: str | None = None
    wait_ms: float | None = None
    usage: ScriptedUsage | None = None
    error: ScriptedError | None = None
    failure: ScriptedFailure | None = None
    finish_reason: events.EndReason | None = None

    arguments: dict[str, Any] | str | None = None
    input: str | None = None
    call_id: str | None = None
    namespace: str | None = None
    repeat: int = 1


class ScriptAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """
    What to say when the last turn contains `when` (a regular expression, in any case of letters; empty matches all).

    Attributes:
        to: whether it answers a `message` or a tool's `result`; None for either.
        say: short for one line with `text`.
    """

    when: str = ""
    to: Literal["message", "result"] | None = None
    say: str | None = None
    lines: tuple[ScriptLine, ...] = ()

    def every_line(self) -> Iterator[ScriptLine]:
        """The lines, each as often as it repeats."""
        if self.say is not None:
            yield ScriptLine(text=self.say)
        for line in self.lines:
            for _ in range(line.repeat):
                yield line


class ScheduledSpeech(Struct, frozen=True, forbid_unknown_fields=True):
    """Speech between two times of the conversation's clock, whatever the audio is."""

    at_ms: int
    until_ms: int


class ScriptedSegment(Struct, frozen=True, forbid_unknown_fields=True):
    """A segment of a transcript; the fields of `InputTranscriptSegment`."""

    text: str
    start_s: float
    end_s: float
    speaker: str = ""


class ScriptedTranscript(Struct, frozen=True, forbid_unknown_fields=True):
    """
    The transcript of a turn.

    Attributes:
        turn: its number from 1; None for every turn that no entry before it names.
        says: the text; None for a text that states the turn's length.
        delay_ms: after the turn's end.
        fails: the transcript fails; the answer is still chosen by `says`.
    """

    turn: int | None = None
    says: str | None = None
    delay_ms: float = 0.0
    languages: tuple[str, ...] = ()
    segments: tuple[ScriptedSegment, ...] = ()
    fails: ScriptedTranscriptFailure | None = None


class ScriptedLoss(Struct, frozen=True, forbid_unknown_fields=True):
    """
    How the engine is lost; apart from `at` the fields of `EngineLost`.

    Attributes:
        at: the number of the input chunk, from 1, at which it is lost; 0 for when it should be ready.
    """

    at: int = 0
    code: str = "backend_error"
    message: str = "The script says so."


class ScriptedUtterance(Struct, frozen=True, forbid_unknown_fields=True):
    """What the engine says unprompted at a chunk of input, numbered from 1, if it is silent then."""

    at: int
    lines: tuple[ScriptLine, ...] = ()


class DuplexScript(Struct, frozen=True, forbid_unknown_fields=True):
    """
    How full duplex goes.

    Attributes:
        ready_ms: how long starting takes.
        metrics: delivered when it is ready.
        piece_ms: how long processing a chunk of input takes.
        says: what is said regardless of the input.
        lost: when and how the engine is lost; None for never.
    """

    ready_ms: float = 0.0
    metrics: dict[str, Any] = {}
    piece_ms: float = 0.0
    says: tuple[ScriptedUtterance, ...] = ()
    lost: ScriptedLoss | None = None


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """
    A script.

    Attributes:
        pace_ms: time between words; 0 sends an answer at once.
        hears: the transcripts of turns; the first match counts.
        speech: when someone speaks; None to detect speech by the level of the audio.
        duplex: for full duplex.
        abilities: changes to the claimed capabilities; fields of `Capabilities`.
        script: a TOML file with these fields; those beside it count before the file's.
    """

    answers: tuple[ScriptAnswer, ...] = ()
    pace_ms: float = 0.0
    hears: tuple[ScriptedTranscript, ...] = ()
    speech: tuple[ScheduledSpeech, ...] | None = None
    duplex: DuplexScript = DuplexScript()
    abilities: dict[str, Any] = {}
    script: str | None = None


def load_script(model: str, options: Mapping[str, Any], build_context: BuildContext) -> tuple[Script, Capabilities, ScriptedRecordings]:
    """
    The script in the model's table of the configuration, the capabilities it claims, and the recordings it plays.

    Raises:
        ServerError: the script or a recording can't be read, or has an unknown key.
    """
    folder = build_context.base_folder
    prefix = f"The script of model '{model}' is wrong: "
    try:
        script = convert_options(options, Script, prefix)
        if script.script is not None:
            path = build_context.base_folder / script.script
            own_options = {name: value for name, value in options.items() if name != "script"}
            script, folder = convert_options(_read(path) | own_options, Script, prefix), path.parent
        capabilities = _capabilities(script.abilities)
        _check(script)
    except (ValueError, re.error) as error:
        raise ServerError(f"{prefix}{describe_option_error(error, Script)}") from None
    line_groups: tuple[ScriptAnswer | ScriptedUtterance, ...] = (*script.answers, *script.duplex.says)
    names = {line.sound for each in line_groups for line in each.lines if line.sound is not None}
    return script, capabilities, ScriptedRecordings(folder, names)


def _capabilities(overrides: Mapping[str, Any]) -> Capabilities:
    """All capabilities, with the script's changes; an engine that can't listen has no full duplex."""
    defaults = {} if overrides.get("listens", True) else {"full_duplex": False, "sees": False}
    return msgspec.convert(msgspec.to_builtins(ALL_CAPABILITIES) | defaults | dict(overrides), Capabilities, strict=False)


def _check(script: Script) -> None:
    """
    Check what the types can't.

    Raises:
        ValueError: something is wrong.
        re.error: a pattern is invalid.
    """
    for answer in script.answers:
        re.compile(answer.when)
    times = [time for stretch in script.speech or () for time in (stretch.at_ms, stretch.until_ms)]
    if any(before >= after for before, after in pairwise((-1, *times))):
        raise ValueError("the times of 'speech' must rise")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ServerError(f"The script {path} can't be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ServerError(f"The script {path} is not TOML: {error}.") from None
