"""Exporting a recording: its files, a transcript to read, subtitles, a mix to listen to, and a film to watch."""

import io
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from antiphon.cli.common.shell import UsageError
from antiphon.installation import install_hint
from antiphon.runtime.export.film import FilmWriter
from antiphon.runtime.export.formats import FRAMES_PER_S, Film, FilmError
from antiphon.runtime.export.pictures import find_pictures, plan_shots
from antiphon.runtime.export.subtitles import Cue, make_captions, make_cues, write_srt, write_webvtt
from antiphon.runtime.recording.files import META
from antiphon.runtime.recording.mixing import PcmAudio, mix_to_wav, read_wav, wav_duration_s
from antiphon.runtime.recording.transcript import TimedTurn, TranscriptTurn, read_timed_turns, render_transcript
from antiphon.runtime.replay.questions import speech_intervals
from antiphon.runtime.replay.steps import DownloadedRecording

_WAV, _FLAC, _MIX = ".wav", ".flac", "mix.wav"


def export_files(recording: DownloadedRecording, *, is_flac: bool, film_writer: FilmWriter | None = None) -> Mapping[str, bytes]:
    """
    The recorded files, by name, with `transcript.md` and subtitles, `mix.wav` where there is audio, and a film.

    Args:
        film_writer: makes the film; None for no film.

    Raises:
        UsageError: the package for FLAC is not installed, or the film can't be made.
    """
    turns = _timed_turns(recording)
    cues = make_cues(turns)
    additions = {
        META: recording.files[META].rstrip() + b"\n",  # the recorder pads it with spaces to rewrite it in place
        "transcript.md": render_transcript(recording.record, [timed_turn.turn for timed_turn in turns]).encode(),
        "subtitles.vtt": write_webvtt(cues).encode(),
        "subtitles.srt": write_srt(make_captions(cues)).encode(),
    }
    sounds = _sounds(recording)
    mix = mix_to_wav(recording.lines, sounds)
    if sounds:
        additions[_MIX] = mix
    files = {**recording.files, **additions}
    if is_flac:
        files = dict(_to_flac(name, content) for name, content in files.items())
    if film_writer is not None:
        files[f"film.{film_writer.file_format.suffix}"] = _film(recording, cues, mix, film_writer)
    return files


def can_be_seen_or_heard(recording: DownloadedRecording) -> bool:
    """Whether a film has anything but subtitles."""
    return bool(_sounds(recording) or find_pictures(recording.lines, recording.files))


def _sounds(recording: DownloadedRecording) -> Mapping[str, PcmAudio]:
    return {name: read_wav(content) for name, content in recording.files.items() if name.endswith(_WAV) and "/" not in name}


def _timed_turns(recording: DownloadedRecording) -> Sequence[TimedTurn]:
    turns = read_timed_turns(recording.lines)
    if recording.is_full_duplex:  # nobody may have transcribed the person there
        person_marks = [timed_turn.marks for timed_turn in turns if timed_turn.turn.role == "person"]
        for begins_s, lasts_s in speech_intervals(recording.lines, recording.files):
            ends_s = begins_s + lasts_s
            if not any(marks[0][1] < ends_s and begins_s < marks[-1][1] for marks in person_marks):
                turn = TranscriptTurn("person", f"(spoke for {lasts_s:.1f} s)", begins_s)
                turns.append(TimedTurn(turn, [(0, begins_s), (len(turn.text), ends_s)]))
    return sorted(turns, key=lambda timed_turn: timed_turn.turn.at_s)


def _film(recording: DownloadedRecording, cues: Sequence[Cue], mix: bytes, writer: FilmWriter) -> bytes:
    ends_s = [wav_duration_s(mix), *(line.at_s for line in recording.lines[-1:]), *(cue.end_s for cue in cues)]
    shots = plan_shots(find_pictures(recording.lines, recording.files), max(ends_s), FRAMES_PER_S)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film"
        try:
            writer.write(Film(shots, mix, make_captions(cues)), writer.file_format, path)
        except FilmError as error:
            raise UsageError(f"There is no film: {error}. --no-film saves the rest.") from None
        return path.read_bytes()


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
