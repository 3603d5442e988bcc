"""`antiphon talk`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.flags import ConfigFlag, ShellParameter
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.cli.voice import audio
from antiphon.cli.voice.audio import RATE_HZ, InputRecording
from antiphon.cli.voice.devices import AudioDevices, load_library
from antiphon.cli.voice.from_files import TalkOutcome, run_conversation
from antiphon.cli.voice.live import run_live_conversation
from antiphon.cli.voice.realtime_session import RealtimeSessionOptions
from antiphon.cli.voice.recording import open_voice_server
from antiphon.cli.voice.render import Renderer, TerminalRenderer
from antiphon.cli.voice.transcript import TalkTurn
from antiphon.errors import UpstreamError

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
    Talk to a model, by microphone or with recordings.

    A recording is sent as if someone spoke. You see the answer, and how long
    it took after the end of the speech. Several recordings are turns of one
    conversation. Without recordings you talk by microphone and speakers. Speak
    to interrupt the model; Ctrl-C ends the conversation.

    It uses a running server, or starts one for this conversation, as
    `antiphon ask` does.

    Try:
        antiphon talk question.wav
        antiphon talk question.wav -o answer.wav
        antiphon talk first.wav second.wav --fast --json
        antiphon talk

    Args:
        recordings: WAV files; with the extra `speech` also FLAC, MP3 and Ogg, with `formats` also M4A, MP4, WebM and
            AAC.
        output: write the answers' audio to this WAV file, at 24 kHz.
        model: which model answers; by default the server's first.
        voice: which voice answers; by default the model's first.
        instructions: the system prompt.
        dialect: of the Realtime API: ga, or the earlier beta.
        fast: send the recordings as fast as possible, not at the pace of speech.
        record: have a running server record the conversation, and say afterwards where it is.
        as_json: print the turns, their times and the number of events as JSON.
        url: base address of the server, such as http://127.0.0.1:8642/v1.
    """
    if not recordings and (output or fast or as_json):
        raise UsageError("-o, --fast and --json are about recordings: name at least one.")
    if output is not None:
        audio.check_output_path(shell.cwd / output)
    inputs = [audio.read_recording(shell.cwd / path) for path in recordings]
    devices = None if inputs else AudioDevices(load_library())
    with open_voice_server(shell, url, file, record=record) as (client, on_session_id):
        options = RealtimeSessionOptions(
            model=model or client.first_model(), dialect=dialect, voice=voice, instructions=instructions, on_session_id=on_session_id
        )
        if devices is not None:
            run_live_conversation(client, options, devices, shell)
        else:
            _talk_with_recordings(client, options, inputs, output, shell, as_json=as_json, is_fast=fast)


def _talk_with_recordings(
    client: ApiClient,
    options: RealtimeSessionOptions,
    recordings: Sequence[InputRecording],
    output: Path | None,
    shell: Shell,
    *,
    as_json: bool,
    is_fast: bool,
) -> None:
    renderer = Renderer() if as_json else TerminalRenderer(shell)
    outcome = asyncio.run(run_conversation(client, options, recordings, renderer, is_fast=is_fast))
    output_path = _write_audio(outcome.turns, shell.cwd / output, shell) if output is not None else None
    if as_json:
        shell.say_json(_to_dict(client, options, outcome, output_path))
    for turn in outcome.turns:
        _check_status(turn, shell)


def _write_audio(turns: Sequence[TalkTurn], path: Path, shell: Shell) -> Path | None:
    pcm = b"".join(turn.pcm for turn in turns if turn.status != "cancelled")
    return audio.write_answer(pcm, RATE_HZ, path, shell)


def _to_dict(client: ApiClient, options: RealtimeSessionOptions, outcome: TalkOutcome, output_path: Path | None) -> dict[str, object]:
    return {
        "server": client.base_url,
        "model": options.model,
        "dialect": options.dialect,
        "turns": [turn.to_dict() for turn in outcome.turns],
        "output": None if output_path is None else str(output_path),
        "events": {"sent": outcome.sent_counts, "received": outcome.received_counts},
    }


def _check_status(turn: TalkTurn, shell: Shell) -> None:
    if turn.status == "failed":
        raise UpstreamError(f"The model failed: {turn.reason or 'it gave no reason'}")
    if turn.status == "incomplete":
        shell.note(f"the answer was cut off: {turn.reason}")
