"""`antiphon duplex`."""

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from cyclopts import Parameter

from antiphon.cli.common import server, weights
from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.flags import ConfigFlag, ShellParameter
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.cli.voice import audio, recording as recorded
from antiphon.errors import UpstreamError

if TYPE_CHECKING:
    from antiphon.cli.voice.from_files_duplex import DuplexOutcome
    from antiphon.cli.voice.minicpmo_session import MinicpmoSessionOptions

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

    A client of the MiniCPM-o protocol: it waits for its turn where there is a
    queue, sends recordings as if someone spoke, with pictures if there are
    any, and shows what the model says when it says it, and how long that took
    from the end of the speech.

    A running server answers, or one started for this session, as with
    `antiphon ask`.

    Try:
        antiphon duplex question.wav
        antiphon duplex question.wav -o answer.wav --chunk-ms 200
        antiphon duplex question.wav --video clip.mp4
        antiphon duplex question.wav --mode chat --json

    Args:
        recordings: WAV files; with the extra `speech` also FLAC, MP3 and Ogg, with `formats` also M4A, MP4, WebM and AAC.
        video: a folder of JPEG files, 'frames/*.jpg', or with the extra `formats` a film.
        mode: chat takes each recording as a message; else video if there is any, or audio.
        output: where the answers' sound goes, as a WAV file of 24 kHz.
        model: who is to answer; else whoever the server takes.
        instructions: what the model is told before the session.
        chunk_ms: how much sound is sent at once.
        force_listen: the model may say nothing until a recording is over.
        fast: send the recordings faster than they sound.
        record: have a running server record the session, and say where it is afterwards.
        as_json: print the answers, their times and the events counted as JSON.
        url: base address of the server, such as http://127.0.0.1:8642/v1.
    """
    if not recordings:
        raise UsageError("Name at least one recording.")
    if not 20 <= chunk_ms <= _MAX_CHUNK_MS:
        raise UsageError(f"--chunk-ms takes 20 to {_MAX_CHUNK_MS}, not {chunk_ms}.")
    if video is not None and mode == "audio":
        raise UsageError("--video is not for --mode audio: nothing is seen there.")
    if output is not None:
        audio.check_output_path(shell.cwd / output)
    # Their wire types and their client load slowly.
    from antiphon.cli.voice import (  # noqa: PLC0415
        duplex_stage,
        frames,
        from_files_duplex,
        minicpmo_session,
    )
    from antiphon.wire.minicpmo.media import RATE_IN_HZ  # noqa: PLC0415

    given = from_files_duplex.DuplexSessionInput(
        recordings=[audio.read_recording(shell.cwd / path, RATE_IN_HZ) for path in recordings],
        pictures=[] if video is None else frames.read_pictures(video, shell.cwd),
        chunk_ms=chunk_ms,
        is_fast=fast,
        force_listen=force_listen,
        wants_audio=output is not None,
    )
    shown = duplex_stage.SilentDuplexRenderer() if as_json else duplex_stage.TerminalDuplexRenderer(shell)
    with (
        # One of its own would forget the recording.
        contextlib.nullcontext(server.find_server(shell, url, file))
        if record
        else server.ensure_server(shell, url, file, weights.with_speech) as client,
        recorded.report_recording(client, shell, url) if record else contextlib.nullcontext() as recording,
    ):
        kind = mode or ("audio" if video is None else "video")
        asked = minicpmo_session.MinicpmoSessionOptions(mode=kind, model=model, instructions=instructions, on_session_id=recording)
        if model is not None and not _has_model(client, model):
            shell.note(f"the server has no model '{model}', and takes another for it where it has only one")
        outcome = asyncio.run(from_files_duplex.run_duplex_session(client, asked, given, shown))
        written = _write_audio(outcome, shell.cwd / output, shell) if output is not None else None
        if as_json:
            shell.say_json(_to_dict(client, asked, outcome, written))
    _raise_on_failure(outcome)


def _has_model(client: ApiClient, model: str) -> bool:
    """Whether the server has a model of that name, or doesn't say; a session may be with another one, and doesn't tell."""
    try:
        client.get(f"/v1/models/{quote(model, safe='')}")
    except UpstreamError as trouble:
        return trouble.code != "model_not_found"
    return True


def _write_audio(outcome: "DuplexOutcome", path: Path, shell: Shell) -> Path | None:
    """Where the answers' sound was written to; None where they have none."""
    from antiphon.wire.minicpmo.media import RATE_OUT_HZ  # noqa: PLC0415 - as above

    sound = b"".join(answer.pcm for answer in outcome.transcript.answers)
    return audio.write_answer(sound, RATE_OUT_HZ, path, shell)


def _to_dict(client: ApiClient, options: "MinicpmoSessionOptions", outcome: "DuplexOutcome", output_path: Path | None) -> dict[str, Any]:
    record, closed = outcome.transcript, outcome.session_closed
    return {
        "server": client.base_url,
        "model": options.model,
        "mode": options.mode,
        "session_id": outcome.session_created.session_id,
        "runtime_mode": outcome.session_created.mode,
        "queue": [place._asdict() for place in record.queue_positions],
        "answers": [answer.to_dict() for answer in record.answers],
        "output": None if output_path is None else str(output_path),
        "usage": (closed.usage or None) if closed is not None else None,
        "events": {"sent": outcome.sent_counts, "received": outcome.received_counts},
    }


def _raise_on_failure(outcome: "DuplexOutcome") -> None:
    """An answer that failed is a fault."""
    if any(answer.reason == "error" for answer in outcome.transcript.answers):
        raise UpstreamError("The model failed.")
