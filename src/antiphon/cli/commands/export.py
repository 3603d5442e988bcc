"""A recording as files of the user's, with what is made of it to be read and listened to."""

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from antiphon.cli.common.shell import UsageError
from antiphon.runtime.recording.files import META
from antiphon.runtime.recording.mixing import mix_to_wav, read_wav
from antiphon.runtime.recording.transcript import TranscriptTurn, read_turns, render_transcript
from antiphon.runtime.replay.questions import speech_intervals
from antiphon.runtime.replay.steps import DownloadedRecording

_WAV, _FLAC = ".wav", ".flac"


def export_files(recording: DownloadedRecording, *, is_flac: bool) -> Mapping[str, bytes]:
    """
    What was recorded, `transcript.md`, and `mix.wav` where there is sound; by name.

    Raises:
        UsageError: FLAC can't be written here.
    """
    sounds = {name: read_wav(content) for name, content in recording.files.items() if name.endswith(_WAV) and "/" not in name}
    made = {
        META: recording.files[META].rstrip() + b"\n",  # while it was written its length was fixed, with spaces
        "transcript.md": render_transcript(recording.record, sorted(_turns(recording), key=lambda turn: turn.at_s)).encode(),
    }
    if sounds:
        made["mix.wav"] = mix_to_wav(recording.lines, sounds)
    files = {**recording.files, **made}
    return dict(_to_flac(name, content) for name, content in files.items()) if is_flac else files


def _turns(recording: DownloadedRecording) -> Iterator[TranscriptTurn]:
    """Who said what; of someone whose words nobody wrote down, when and for how long."""
    yield from read_turns(recording.lines)
    if recording.is_full_duplex:
        for begins_s, lasts_s in speech_intervals(recording.lines, recording.files):
            yield TranscriptTurn("person", f"(spoke for {lasts_s:.1f} s)", begins_s)


def _to_flac(name: str, content: bytes) -> tuple[str, bytes]:
    if not name.endswith(_WAV):
        return name, content
    try:
        import soundfile  # noqa: PLC0415 - in the extra `speech`
    except ImportError:
        raise UsageError("FLAC files need the extra `speech`: pip install 'antiphon[speech]'; without --flac they are WAV.") from None
    samples, rate_hz = soundfile.read(io.BytesIO(content), dtype="int16")
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="FLAC", subtype="PCM_16")
    return name.removesuffix(_WAV) + _FLAC, file.getvalue()


def save(target: Path, files: Mapping[str, bytes]) -> None:
    """
    Write files into a zip file or a folder, which there is not yet.

    Raises:
        OSError: there is, or it can't be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
