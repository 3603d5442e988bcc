"""`antiphon duplex`."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from cyclopts import Parameter

from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.flags import ConfigFlag, ShellParameter
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.cli.voice import audio, frames
from antiphon.cli.voice.from_files_duplex import DuplexOutcome, DuplexSessionInput, run_duplex_session
from antiphon.cli.voice.minicpmo_session import MinicpmoSessionOptions
from antiphon.cli.voice.recording import open_voice_server
from antiphon.cli.voice.render import Renderer, TerminalRenderer
from antiphon.errors import UpstreamError
from antiphon.wire.minicpmo.media import RATE_IN_HZ, RATE_OUT_HZ

_MAX_CHUNK_MS = 5_000


def duplex(
    *recordings: Path,
    video: str | None = None,
    mode: Literal["audio", "video", "chat"] | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    model: str | None = None,
    instructions: str | None = None,
    chunk_ms: int = 1_000,
    force_listen: bool = False,
    fast: bool = False,
    record: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    url: str | None = None,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Talk to a model that listens and speaks at the same time.

    A client of the MiniCPM-o protocol. It waits in the server's queue, sends
    recordings as if someone spoke, with pictures if you give some, and shows
    what the model says, as it says it, and how long that took after the end of
    the speech.

    It uses a running server, or starts one for this session, as `antiphon ask`
    does.

    Try:
        antiphon duplex question.wav
        antiphon duplex question.wav -o answer.wav --chunk-ms 200
        antiphon duplex question.wav --video clip.mp4
        antiphon duplex question.wav --mode chat --json

    Args:
        recordings: WAV files; with the extra `speech` also FLAC, MP3 and Ogg, with `formats` also M4A, MP4, WebM and
            AAC.
        video: a folder of JPEG files, 'frames/*.jpg', or with the extra `formats` a film.
        mode: chat sends each recording as a message; by default video with --video, else audio.
        output: write the answers' audio to this WAV file, at 24 kHz.
        model: which model answers; by default the server chooses.
        instructions: the system prompt.
        chunk_ms: how much audio to send at once, in milliseconds.
        force_listen: keep the model silent until a recording is over.
        fast: send the recordings faster than they play.
        record: have a running server record the session, and say afterwards where it is.
        as_json: print the answers, their times and the number of events as JSON.
        url: base address of the server, such as http://127.0.0.1:8642/v1.
    """
    if not recordings:
        raise UsageError("Name at least one recording.")
    if not 20 <= chunk_ms <= _MAX_CHUNK_MS:
        raise UsageError(f"--chunk-ms takes 20 to {_MAX_CHUNK_MS}, not {chunk_ms}.")
    if video is not None and mode == "audio":
        raise UsageError("--video does not go with --mode audio, which sends no pictures.")
    if output is not None:
        audio.check_output_path(shell.cwd / output)
    inputs = DuplexSessionInput(
        recordings=[audio.read_recording(shell.cwd / path, RATE_IN_HZ) for path in recordings],
        pictures=[] if video is None else frames.read_pictures(video, shell.cwd),
        chunk_ms=chunk_ms,
        is_fast=fast,
        force_listen=force_listen,
        wants_audio=output is not None,
    )
    renderer = Renderer() if as_json else TerminalRenderer(shell)
    with open_voice_server(shell, url, file, record=record) as (client, on_session_id):
        options = MinicpmoSessionOptions(
            mode=mode or ("audio" if video is None else "video"), model=model, instructions=instructions, on_session_id=on_session_id
        )
        if model is not None and not _has_model(client, model):
            shell.note(f"the server has no model '{model}'; if it has only one, that one answers")
        outcome = asyncio.run(run_duplex_session(client, options, inputs, renderer))
        output_path = _write_audio(outcome, shell.cwd / output, shell) if output is not None else None
        if as_json:
            shell.say_json(_to_dict(client, options, outcome, output_path))
    if any(answer.reason == "error" for answer in outcome.transcript.answers):
        raise UpstreamError("The model failed.")


def _has_model(client: ApiClient, model: str) -> bool:
    # A MiniCPM-o session never says which model it got, so `/v1/models` has to. Servers without that route get the
    # benefit of the doubt.
    try:
        client.get(f"/v1/models/{quote(model, safe='')}")
    except UpstreamError as error:
        return error.code != "model_not_found"
    return True


def _write_audio(outcome: DuplexOutcome, path: Path, shell: Shell) -> Path | None:
    pcm = b"".join(answer.pcm for answer in outcome.transcript.answers)
    return audio.write_answer(pcm, RATE_OUT_HZ, path, shell)


def _to_dict(client: ApiClient, options: MinicpmoSessionOptions, outcome: DuplexOutcome, output_path: Path | None) -> dict[str, object]:
    transcript, session_closed = outcome.transcript, outcome.session_closed
    return {
        "server": client.base_url,
        "model": options.model,
        "mode": options.mode,
        "session_id": outcome.session_created.session_id,
        "runtime_mode": outcome.session_created.mode,
        "queue": [position._asdict() for position in transcript.queue_positions],
        "answers": [answer.to_dict() for answer in transcript.answers],
        "output": None if output_path is None else str(output_path),
        "usage": (session_closed.usage or None) if session_closed is not None else None,
        "events": {"sent": outcome.sent_counts, "received": outcome.received_counts},
    }
