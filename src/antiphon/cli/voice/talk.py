"""`antiphon talk`."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from antiphon.cli.common import server as own, weights as fetching
from antiphon.cli.common.client import Client
from antiphon.cli.common.flags import Around, ConfigFile
from antiphon.cli.common.shell import Shell, UsageMistake
from antiphon.cli.voice import audio as talk_sound, recording as recorded
from antiphon.cli.voice.audio import RATE_HZ, Recording
from antiphon.errors import UpstreamTrouble

if TYPE_CHECKING:
    from antiphon.cli.voice.from_files import Outcome
    from antiphon.cli.voice.realtime_session import Asked
    from antiphon.cli.voice.transcript import Turn

Output = Annotated[Path | None, Parameter(name=["--output", "-o"])]


def talk(
    *recordings: Path,
    output: Output = None,
    model: str | None = None,
    voice: str | None = None,
    instructions: str | None = None,
    dialect: Literal["ga", "beta"] = "ga",
    fast: bool = False,
    record: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    url: str | None = None,
    file: ConfigFile = None,
    shell: Around,
) -> None:
    """
    Talk to a model: with recordings, or with a microphone.

    A recording is said to the server as if someone spoke, and the answer is
    shown with how long it took from the end of the speech. Several recordings
    are turns of one conversation. With none you talk yourself, by microphone
    and speakers, and interrupt the model by speaking; Ctrl-C ends it.

    A running server answers, or one started for this conversation, as with
    `antiphon ask`.

    Try:
        antiphon talk question.wav
        antiphon talk question.wav -o answer.wav
        antiphon talk first.wav second.wav --fast --json
        antiphon talk

    Args:
        recordings: WAV files; with the extra `speech` also FLAC, MP3 and Ogg, with `formats` also M4A, MP4, WebM and AAC.
        output: where the answers' sound goes, as a WAV file of 24 kHz.
        model: who is to answer; else the server's first model.
        voice: how it is to sound; else the model's first voice.
        instructions: what the model is told before the conversation.
        dialect: of the Realtime API: ga, or beta as it was before.
        fast: send the recordings as fast as it goes, not as fast as they sound.
        record: have a running server record the conversation, and say where it is afterwards.
        as_json: print the turns, their times and the events counted as JSON.
        url: base address of the server, such as http://127.0.0.1:8642/v1.
    """
    if not recordings and (output or fast or as_json):
        raise UsageMistake("-o, --fast and --json are about recordings: name at least one.")
    if output is not None:
        talk_sound.refuse_no_file(shell.cwd / output)
    from antiphon.cli.voice import devices as talk_devices, live as talk_live, realtime_session as talk_line  # noqa: PLC0415 - their wire types and their client load slowly

    said = [talk_sound.read(shell.cwd / path) for path in recordings]
    devices = None if said else talk_devices.Devices(talk_devices.load())
    with (
        # One of its own would forget the recording.
        contextlib.nullcontext(own.running(shell, url, file)) if record else own.answering(shell, url, file, fetching.with_ears) as client,
        recorded.told(client, shell, url) if record else contextlib.nullcontext() as recording,
    ):
        model = model or client.first_model()
        asked = talk_line.Asked(model=model, dialect=dialect, voice=voice, instructions=instructions, recording=recording)
        if devices is not None:
            talk_live.converse(client, asked, devices, shell)
        else:
            _say(client, asked, said, output, shell, as_json=as_json, is_fast=fast)


def _say(
    client: Client, asked: "Asked", recordings: Sequence[Recording], output: Path | None, shell: Shell, *, as_json: bool, is_fast: bool
) -> None:
    from antiphon.cli.voice import from_files as talk_files, render as talk_stage  # noqa: PLC0415 - as above

    shown = talk_stage.Unseen() if as_json else talk_stage.Stage(shell, names_recordings=len(recordings) > 1)
    outcome = asyncio.run(talk_files.held(client, asked, recordings, shown, is_fast=is_fast))
    written = _written(outcome.turns, shell.cwd / output, shell) if output is not None else None
    if as_json:
        shell.say_json(_told(client, asked, outcome, written))
    for turn in outcome.turns:
        _judge(turn, shell)


def _written(turns: "Sequence[Turn]", path: Path, shell: Shell) -> Path | None:
    """Where the answers' sound was written to; None where they have none."""
    sound = b"".join(turn.sound for turn in turns if turn.status != "cancelled")
    return talk_sound.written(sound, RATE_HZ, path, shell)


def _told(client: Client, asked: "Asked", outcome: "Outcome", written: Path | None) -> dict[str, Any]:
    return {
        "server": client.base_url,
        "model": asked.model,
        "dialect": asked.dialect,
        "turns": [turn.told() for turn in outcome.turns],
        "output": None if written is None else str(written),
        "events": {"sent": outcome.sent, "received": outcome.received},
    }


def _judge(turn: "Turn", shell: Shell) -> None:
    """Say what is wrong with an answer that is not whole; one that failed is a fault."""
    if turn.status == "failed":
        raise UpstreamTrouble(f"The model failed: {turn.reason or 'it does not say why'}")
    if turn.status == "incomplete":
        shell.note(f"the answer was cut off: {turn.reason}")
