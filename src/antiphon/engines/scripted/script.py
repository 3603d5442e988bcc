"""
The script of a scripted engine: what it may hold, and how it is read.

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


class ScriptedFailure(Struct, frozen=True, forbid_unknown_fields=True):
    """How a scripted answer fails; the fields of `ResponseFailed`."""

    message: str = "The script says so."
    status: int = 500
    code: str | None = "server_error"
    type: str = "server_error"
    param: str | None = None
    retry_after_s: float | None = None


class ScriptedError(Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong beside the answers; the fields of `Trouble`."""

    message: str = "The script says so."
    code: str | None = "server_error"
    type: str = "server_error"


class ScriptedTranscriptFailure(Struct, frozen=True, forbid_unknown_fields=True):
    """How a turn is not heard; the fields of `InputTranscriptFailed`."""

    message: str = "The script says so."
    code: str | None = "transcription_failed"
    type: str = "server_error"


class ScriptedUsage(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that a scripted answer claims to have used; the fields of `Usage`."""

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
    One thing to say, or to do, exactly one field of the first group set.

    Attributes:
        text: the answer's text, split into words, each said at the script's pace; aloud where the answer has a voice.
        sound: a WAV file to play where the answer has a voice; with `text`, its words are those of the file.
        aloud_ms: a tone of that length where the answer has a voice.
        measured: metrics of what comes next.
        call: name of a tool to call, with `arguments` (a table, or text as it is), or with `input` for a custom tool.
        wait_ms: silence.
        repeat: how often to say the line.
    """

    text: str | None = None
    sound: str | None = None
    aloud_ms: float | None = None
    reasoning: str | None = None
    summary: str | None = None
    sealed: str | None = None
    refusal: str | None = None
    annotation: dict[str, Any] | None = None
    measured: dict[str, Any] | None = None
    call: str | None = None
    wait_ms: float | None = None
    used: ScriptedUsage | None = None
    trouble: ScriptedError | None = None
    broke: ScriptedFailure | None = None
    ended: events.EndReason | None = None

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
        say: short for one line of text.
    """

    when: str = ""
    to: Literal["message", "result"] | None = None
    say: str | None = None
    lines: tuple[ScriptLine, ...] = ()

    def every_line(self) -> Iterator[ScriptLine]:
        """The lines, those that repeat as often as they do."""
        if self.say is not None:
            yield ScriptLine(text=self.say)
        for line in self.lines:
            for _ in range(line.repeat):
                yield line


class ScheduledSpeech(Struct, frozen=True, forbid_unknown_fields=True):
    """Speech from one time of the conversation's clock until another, whatever the sound is."""

    at_ms: int
    until_ms: int


class ScriptedSegment(Struct, frozen=True, forbid_unknown_fields=True):
    """What one speaker said in a turn; the fields of `InputTranscriptSegment`."""

    text: str
    start_s: float
    end_s: float
    speaker: str = ""


class ScriptedTranscript(Struct, frozen=True, forbid_unknown_fields=True):
    """
    What a turn is heard as.

    Attributes:
        turn: which one, the first being 1; None for every one that is not named before.
        says: its words; None for words that tell its length.
        delay_ms: after the turn's end.
        fails: it is not transcribed; for the choice of an answer it was heard all the same.
    """

    turn: int | None = None
    says: str | None = None
    delay_ms: float = 0.0
    languages: tuple[str, ...] = ()
    segments: tuple[ScriptedSegment, ...] = ()
    fails: ScriptedTranscriptFailure | None = None


class ScriptedLoss(Struct, frozen=True, forbid_unknown_fields=True):
    """
    How a scripted worker is lost; but for `at` the fields of `EngineLost`.

    Attributes:
        at: the piece of sound at which it dies, the first being 1; 0 when it should be ready.
    """

    at: int = 0
    code: str = "backend_error"
    message: str = "The script says so."


class ScriptedUtterance(Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of its own accord `at` a piece of sound, the first being 1, if nothing is being said then."""

    at: int
    lines: tuple[ScriptLine, ...] = ()


class DuplexScript(Struct, frozen=True, forbid_unknown_fields=True):
    """
    How full duplex is done.

    Attributes:
        ready_ms: until it may begin.
        metrics: what is told when it may.
        piece_ms: how long a piece of sound takes to be worked on.
        says: what is said whatever was heard.
        lost: when and how it dies; None for never.
    """

    ready_ms: float = 0.0
    metrics: dict[str, Any] = {}
    piece_ms: float = 0.0
    says: tuple[ScriptedUtterance, ...] = ()
    lost: ScriptedLoss | None = None


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """
    All that a scripted model knows.

    Attributes:
        pace_ms: time between words; 0 says all of an answer at once.
        hears: what turns are heard as; the first that fits holds.
        speech: when somebody speaks; None leaves it to the level of the sound.
        duplex: what is done in full duplex.
        abilities: what to claim not to be able to do, or otherwise; fields of `Capabilities`.
        script: a TOML file with these fields, read in place of the rest.
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
    A script from the model's table in the configuration, what it claims to be able to do, and the recordings that it
    plays.

    Raises:
        ServerError: the script or a recording can't be read, or it has a key that is no part of a script.
    """
    folder = build_context.base_folder
    try:
        script = msgspec.convert(dict(options), Script, strict=False)
        if script.script is not None:
            path = build_context.base_folder / script.script
            script, folder = msgspec.convert(_read(path), Script, strict=False), path.parent
        abilities = _capabilities(script.abilities)
        _check(script)
    except (ValueError, re.error) as error:
        raise ServerError(f"The script of model '{model}' is wrong: {error}.") from None
    said: tuple[ScriptAnswer | ScriptedUtterance, ...] = (*script.answers, *script.duplex.says)
    names = {line.sound for each in said for line in each.lines if line.sound is not None}
    return script, abilities, ScriptedRecordings(folder, names)


def _capabilities(overrides: Mapping[str, Any]) -> Capabilities:
    """All but what is taken away; who can't hear does no full duplex either."""
    hears = {} if overrides.get("listens", True) else {"full_duplex": False, "sees": False}
    return msgspec.convert(msgspec.to_builtins(ALL_CAPABILITIES) | hears | dict(overrides), Capabilities, strict=False)


def _check(script: Script) -> None:
    """
    Find what the types can't say.

    Raises:
        ValueError: something is wrong.
        re.error: a pattern is none.
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
