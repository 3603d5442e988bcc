"""`antiphon talk`."""

import asyncio
from typing import Annotated, Literal

from cyclopts import Parameter

from antiphon.cli.common.client import check_answer_status
from antiphon.cli.common.flags import ConfigFlag, OutputFlag, RecordFlag, RecordingPath, SampleFlag, ShellParameter, UrlFlag
from antiphon.cli.common.shell import UsageError
from antiphon.cli.voice.audio import read_recordings
from antiphon.cli.voice.devices import AudioDevices, load_library
from antiphon.cli.voice.from_files import run_conversation
from antiphon.cli.voice.live import run_live_conversation
from antiphon.cli.voice.realtime_session import RealtimeSessionOptions
from antiphon.cli.voice.recording import open_voice_server
from antiphon.cli.voice.render import SessionOutput


def talk(
    *recordings: RecordingPath,
    sample: SampleFlag = False,
    output: OutputFlag = None,
    model: str | None = None,
    voice: str | None = None,
    instructions: str | None = None,
    dialect: Literal["ga", "beta"] = "ga",
    fast: bool = False,
    record: RecordFlag = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    url: UrlFlag = None,
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
        antiphon talk --sample
        antiphon talk question.wav -o answer.wav
        antiphon talk first.wav second.wav --fast --json
        antiphon talk

    Args:
        model: which model answers; by default the server's first.
        voice: which voice answers; by default the model's first.
        instructions: the system prompt.
        dialect: version of the Realtime API: ga, or the older beta.
        fast: send the recordings as fast as possible, not at the pace of speech.
        as_json: print the turns, their times and the numbers of events, as JSON.
    """
    if not (recordings or sample) and (output or fast or as_json):
        raise UsageError("-o, --fast and --json are about recordings: name at least one, or take --sample.")
    session_output = SessionOutput(shell, output, as_json=as_json)
    inputs = read_recordings(recordings, shell.cwd, is_sample=sample)
    devices = None if inputs else AudioDevices(load_library())
    with open_voice_server(shell, url, file, record=record) as (client, on_session_id):
        options = RealtimeSessionOptions(
            model=model or client.first_model(), dialect=dialect, voice=voice, instructions=instructions, on_session_id=on_session_id
        )
        if devices is not None:
            return run_live_conversation(client, options, devices, shell)
        turns, event_counts = asyncio.run(run_conversation(client, options, inputs, session_output.renderer, is_fast=fast))
        result = {
            "server": client.base_url,
            "model": options.model,
            "dialect": dialect,
            "turns": [turn.to_dict() for turn in turns],
            "events": event_counts._asdict(),
        }
        session_output.finish(result, (turn.pcm for turn in turns if turn.status != "cancelled"))
    for turn in turns:
        check_answer_status(turn.status, turn.reason, shell)
    return None
