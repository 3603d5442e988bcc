"""`antiphon duplex`."""

import asyncio
from typing import Annotated, Literal

from cyclopts import Parameter

from antiphon.cli.common.flags import ConfigFlag, OutputFlag, RecordFlag, RecordingPath, SampleFlag, ShellParameter, UrlFlag
from antiphon.cli.common.shell import UsageError
from antiphon.cli.voice import frames
from antiphon.cli.voice.audio import read_recordings
from antiphon.cli.voice.from_files_duplex import DuplexSessionInput, run_duplex_session
from antiphon.cli.voice.minicpmo_session import MinicpmoSessionOptions
from antiphon.cli.voice.recording import open_voice_server
from antiphon.cli.voice.render import SessionOutput
from antiphon.errors import UpstreamError
from antiphon.wire.minicpmo.media import RATE_IN_HZ

_MAX_CHUNK_MS = 5_000


def duplex(
    *recordings: RecordingPath,
    sample: SampleFlag = False,
    video: str | None = None,
    mode: Literal["audio", "video", "chat"] | None = None,
    output: OutputFlag = None,
    model: str | None = None,
    instructions: str | None = None,
    chunk_ms: int = 1_000,
    force_listen: bool = False,
    fast: bool = False,
    record: RecordFlag = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    url: UrlFlag = None,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Talk to a model that listens and speaks at the same time.

    It waits in the server's queue, sends recordings as if someone spoke, with
    pictures if you give some, and shows what the model says, as it says it, and
    how long that took after the end of the speech. It speaks the MiniCPM-o
    protocol.

    It uses a running server, or starts one for this session, as `antiphon ask`
    does.

    Try:
        antiphon duplex --sample
        antiphon duplex question.wav -o answer.wav --chunk-ms 200
        antiphon duplex question.wav --video clip.mp4
        antiphon duplex question.wav --mode chat --json

    Args:
        video: a folder of JPEG files, 'frames/*.jpg', or with the extra `formats` a film.
        mode: chat sends each recording as a message; by default video with --video, else audio.
        model: which model answers; by default the server chooses.
        instructions: the system prompt.
        chunk_ms: how much audio to send at once, in milliseconds; by default 1000.
        force_listen: keep the model silent until a recording is over.
        fast: send the recordings faster than they play.
        as_json: print the answers, their times and the numbers of events, as JSON.
    """
    if not (recordings or sample):
        raise UsageError("Name at least one recording, or take --sample.")
    if not 20 <= chunk_ms <= _MAX_CHUNK_MS:
        raise UsageError(f"--chunk-ms takes 20 to {_MAX_CHUNK_MS}, not {chunk_ms}.")
    if video is not None and mode == "audio":
        raise UsageError("--video does not go with --mode audio, which sends no pictures.")
    session_output = SessionOutput(shell, output, as_json=as_json)
    inputs = DuplexSessionInput(
        recordings=read_recordings(recordings, shell.cwd, RATE_IN_HZ, is_sample=sample),
        pictures=[] if video is None else frames.read_pictures(video, shell.cwd),
        chunk_ms=chunk_ms,
        is_fast=fast,
        force_listen=force_listen,
        wants_audio=output is not None,
    )
    with open_voice_server(shell, url, file, record=record) as (client, on_session_id):
        options = MinicpmoSessionOptions(
            mode=mode or ("audio" if video is None else "video"), model=model, instructions=instructions, on_session_id=on_session_id
        )
        # A MiniCPM-o session never says which model it got.
        if model is not None and not client.has_model(model):
            shell.note(f"the server has no model '{model}'; if it has only one, that one answers")
        outcome = asyncio.run(run_duplex_session(client, options, inputs, session_output.renderer))
        answers = outcome.transcript.answers
        result = {"server": client.base_url, "model": model, "mode": options.mode, **outcome.to_dict()}
        session_output.finish(result, (answer.pcm for answer in answers))
    if any(answer.reason == "error" for answer in answers):
        raise UpstreamError("The model failed.")
