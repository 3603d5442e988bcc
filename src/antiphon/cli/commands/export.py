"""Exporting a recording: its files, a transcript to read, and a mix to listen to."""

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from antiphon.cli.common.shell import UsageError
from antiphon.installation import install_hint
from antiphon.runtime.recording.files import META
from antiphon.runtime.recording.mixing import mix_to_wav, read_wav
from antiphon.runtime.recording.transcript import TranscriptTurn, read_turns, render_transcript
from antiphon.runtime.replay.questions import speech_intervals
from antiphon.runtime.replay.steps import DownloadedRecording

_WAV, _FLAC = ".wav", ".flac"


def export_files(recording: DownloadedRecording, *, is_flac: bool) -> Mapping[str, bytes]:
    """
    The recorded files, `transcript.md`, and `mix.wav` where there is audio; by name.

    Raises:
        UsageError: the package for FLAC is not installed.
    """
    sounds = {name: read_wav(content) for name, content in recording.files.items() if name.endswith(_WAV) and "/" not in name}
    additions = {
        META: recording.files[META].rstrip() + b"\n",  # the recorder pads it with spaces to rewrite it in place
        "transcript.md": render_transcript(recording.record, sorted(_turns(recording), key=lambda turn: turn.at_s)).encode(),
    }
    if sounds:
        additions["mix.wav"] = mix_to_wav(recording.lines, sounds)
    files = {**recording.files, **additions}
    return dict(_to_flac(name, content) for name, content in files.items()) if is_flac else files


def _turns(recording: DownloadedRecording) -> Iterator[TranscriptTurn]:
    yield from read_turns(recording.lines)
    if recording.is_full_duplex:  # nothing transcribes the person there
        for begins_s, lasts_s in speech_intervals(recording.lines, recording.files):
            yield TranscriptTurn("person", f"(spoke for {lasts_s:.1f} s)", begins_s)


def _to_flac(name: str, content: bytes) -> tuple[str, bytes]:
    if not name.endswith(_WAV):
        return name, content
    try:
        import soundfile  # noqa: PLC0415 - needs the extra `speech`
    except ImportError:
        raise UsageError(f"FLAC needs the extra `speech`. {install_hint('speech')} Without --flac the files are WAV.") from None
    samples, rate_hz = soundfile.read(io.BytesIO(content), dtype="int16")
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="FLAC", subtype="PCM_16")
    return name.removesuffix(_WAV) + _FLAC, file.getvalue()


def save(target: Path, files: Mapping[str, bytes]) -> None:
    """
    Write files into a new zip file or folder.

    Raises:
        OSError: it exists, or can't be written.
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
