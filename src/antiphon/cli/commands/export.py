"""A recording as files of the user's, with what is made of it to be read and listened to."""

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from antiphon.cli.common.shell import UsageMistake
from antiphon.runtime.recording.files import META
from antiphon.runtime.recording.mixing import mixed, sound_of
from antiphon.runtime.recording.transcript import Turn, transcript, turns_of
from antiphon.runtime.replay.questions import spoken
from antiphon.runtime.replay.steps import Recorded

_WAV, _FLAC = ".wav", ".flac"


def files_of(recorded: Recorded, *, is_flac: bool) -> Mapping[str, bytes]:
    """
    What was recorded, `transcript.md`, and `mix.wav` where there is sound; by name.

    Raises:
        UsageMistake: FLAC can't be written here.
    """
    sounds = {name: sound_of(content) for name, content in recorded.files.items() if name.endswith(_WAV) and "/" not in name}
    made = {
        META: recorded.files[META].rstrip() + b"\n",  # while it was written its length was fixed, with spaces
        "transcript.md": transcript(recorded.record, sorted(_turns(recorded), key=lambda turn: turn.at_s)).encode(),
    }
    if sounds:
        made["mix.wav"] = mixed(recorded.lines, sounds)
    files = {**recorded.files, **made}
    return dict(_flac(name, content) for name, content in files.items()) if is_flac else files


def _turns(recorded: Recorded) -> Iterator[Turn]:
    """Who said what; of someone whose words nobody wrote down, when and for how long."""
    yield from turns_of(recorded.lines)
    if recorded.is_full_duplex:
        for begins_s, lasts_s in spoken(recorded.lines, recorded.files):
            yield Turn("person", f"(spoke for {lasts_s:.1f} s)", begins_s)


def _flac(name: str, content: bytes) -> tuple[str, bytes]:
    if not name.endswith(_WAV):
        return name, content
    try:
        import soundfile  # noqa: PLC0415 - in the extra `speech`
    except ImportError:
        raise UsageMistake("FLAC files need the extra `speech`: pip install 'antiphon[speech]'; without --flac they are WAV.") from None
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
