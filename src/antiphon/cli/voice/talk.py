"""`antiphon talk`."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from antiphon.cli.common import server, weights
from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.flags import ConfigFlag, ShellParameter
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.cli.voice import audio, recording as recorded
from antiphon.cli.voice.audio import RATE_HZ, InputRecording
from antiphon.errors import UpstreamError

if TYPE_CHECKING:
    from antiphon.cli.voice.from_files import TalkOutcome
    from antiphon.cli.voice.realtime_session import RealtimeSessionOptions
    from antiphon.cli.voice.transcript import TalkTurn

OutputFlag = Annotated[Path | None, Parameter(name=["--output", "-o"])]


def talk(
    *recordings: Path,
    output: OutputFlag = None,
    model: str | None = None,
    voice: str | None = None,
    instructions: str | None = None,
    dialect: Literal["ga", "beta"] = "ga",
    fast: bool = False,
    record: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    url: str | None = None,
    file: ConfigFlag = None,
    shell: ShellParameter,
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
        raise UsageError("-o, --fast and --json are about recordings: name at least one.")
    if output is not None:
        audio.check_output_path(shell.cwd / output)
    from antiphon.cli.voice import devices as talk_devices, live, realtime_session  # noqa: PLC0415 - their wire types and their client load slowly

    said = [audio.read_recording(shell.cwd / path) for path in recordings]
    devices = None if said else talk_devices.AudioDevices(talk_devices.load_library())
    with (
        # One of its own would forget the recording.
        contextlib.nullcontext(server.find_server(shell, url, file))
        if record
        else server.ensure_server(shell, url, file, weights.with_speech) as client,
        recorded.report_recording(client, shell, url) if record else contextlib.nullcontext() as recording,
    ):
        model = model or client.first_model()
        asked = realtime_session.RealtimeSessionOptions(
            model=model, dialect=dialect, voice=voice, instructions=instructions, on_session_id=recording
        )
        if devices is not None:
            live.run_live_conversation(client, asked, devices, shell)
        else:
            _talk_with_recordings(client, asked, said, output, shell, as_json=as_json, is_fast=fast)


def _talk_with_recordings(
    client: ApiClient,
    options: "RealtimeSessionOptions",
    recordings: Sequence[InputRecording],
    output: Path | None,
    shell: Shell,
    *,
    as_json: bool,
    is_fast: bool,
) -> None:
    from antiphon.cli.voice import from_files, render  # noqa: PLC0415 - as above

    shown = render.SilentTalkRenderer() if as_json else render.TerminalTalkRenderer(shell, names_recordings=len(recordings) > 1)
    outcome = asyncio.run(from_files.run_conversation(client, options, recordings, shown, is_fast=is_fast))
    written = _write_audio(outcome.turns, shell.cwd / output, shell) if output is not None else None
    if as_json:
        shell.say_json(_to_dict(client, options, outcome, written))
    for turn in outcome.turns:
        _raise_on_failure(turn, shell)


def _write_audio(turns: "Sequence[TalkTurn]", path: Path, shell: Shell) -> Path | None:
    """Where the answers' sound was written to; None where they have none."""
    sound = b"".join(turn.pcm for turn in turns if turn.status != "cancelled")
    return audio.write_answer(sound, RATE_HZ, path, shell)


def _to_dict(client: ApiClient, options: "RealtimeSessionOptions", outcome: "TalkOutcome", output_path: Path | None) -> dict[str, Any]:
    return {
        "server": client.base_url,
        "model": options.model,
        "dialect": options.dialect,
        "turns": [turn.to_dict() for turn in outcome.turns],
        "output": None if output_path is None else str(output_path),
        "events": {"sent": outcome.sent_counts, "received": outcome.received_counts},
    }


def _raise_on_failure(turn: "TalkTurn", shell: Shell) -> None:
    """Say what is wrong with an answer that is not whole; one that failed is a fault."""
    if turn.status == "failed":
        raise UpstreamError(f"The model failed: {turn.reason or 'it does not say why'}")
    if turn.status == "incomplete":
        shell.note(f"the answer was cut off: {turn.reason}")
