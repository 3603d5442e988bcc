"""`antiphon sessions`: list, show, replay, export, rm."""

import asyncio
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from antiphon.cli.common import server
from antiphon.cli.common.client import ApiClient, path_segment
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter, UrlFlag
from antiphon.cli.common.shell import Shell, UsageError, align_columns, format_time
from antiphon.cli.recordings import compare, export as exporting
from antiphon.cli.recordings.replay import SessionReplay
from antiphon.errors import UpstreamError, quote_list
from antiphon.installation import install_hint
from antiphon.runtime.export.film import FilmWriter, find_writer
from antiphon.runtime.recording.files import EVENTS, META, decode_lines
from antiphon.runtime.recording.transcript import read_turns, render_text
from antiphon.runtime.replay.compare import to_dict
from antiphon.runtime.replay.steps import DownloadedRecording
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.http.recordings import RecordedSession, RecordedSessionList

app = App(
    name="sessions",
    help="""
See, export, replay and delete recordings of sessions.

It asks a running server: the configured one, or the one that --url names.

Try:
    antiphon sessions list
    antiphon sessions show sess_68af
    antiphon sessions export sess_68af -o session.zip
""",
)

_PATH = "/v1/sessions"
_ID_NAME = "A recording's id"
_PAGE_SIZE = 100
_MAX_LISTED = 10_000
_FILE_NAME = re.compile(r"(\w+/)?\w[\w.-]*", re.ASCII)
_FACT_LABELS = {"duration_ms": "length", "bytes": "size"}
_SHORT_ID_LENGTH = len("sess_") + 8
"""How much of an id is listed: it is unique enough, and lines still fit a terminal."""


@app.command(name="list")
def list_(*, limit: int = 20, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the recordings, the newest first.

    Ids are shortened: the beginning of one is enough for other commands. --json
    has them in full.

    Try:
        antiphon sessions list
        antiphon sessions list --limit 100 --json

    Args:
        limit: how many at most.
    """
    if limit < 1:
        raise UsageError("--limit must be 1 or more.")
    sessions = list(_list_sessions(server.find_server(shell, url, file), limit))
    if as_json:
        return shell.say_json(sessions)
    if not sessions:
        return shell.note("there are no recordings; `recording.when` says which sessions are recorded")
    rows = [
        (
            session.id[:_SHORT_ID_LENGTH],
            format_time(session.created_at),
            session.protocol,
            session.mode,
            session.model,
            *_length_size_state(session),
        )
        for session in sessions
    ]
    return shell.say_rows([("ID", "BEGAN (UTC)", "PROTOCOL", "MODE", "MODEL", "LENGTH", "SIZE", "STATE"), *rows])


@app.command
def show(session: str, /, *, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Show a recording: what it is, its files, and who said what.

    Try:
        antiphon sessions show sess_68af

    Args:
        session: its id, or the beginning of it.
    """
    client = server.find_server(shell, url, file)
    facts = client.get(_session_path(_resolve_id(client, session)))
    has_events = any(one["name"] == EVENTS for one in facts.get("files", ()))
    turns = read_turns(decode_lines(client.get_file(_session_path(facts["id"]) + "/events"))) if has_events else []
    if as_json:
        return shell.say_json(facts | {"turns": turns})
    rows = [
        (_FACT_LABELS.get(name, name), _format_fact(name, value))
        for name, value in facts.items()
        if name not in ("object", "files") and value not in (None, "")
    ]
    shell.say_rows([*rows, *(("file", line) for line in _file_lines(facts.get("files", ())))])
    shell.say()
    return shell.say_rows([(f"{turn.at_s:7.2f} s", turn.role, render_text(turn)) for turn in turns])


@app.command
def export(
    session: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    flac: bool = False,
    film: Annotated[bool | None, Parameter(negative="--no-film")] = None,
    url: UrlFlag = None,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Save a recording with all of its files.

    It adds `transcript.md`, for people to read; `subtitles.vtt` and
    `subtitles.srt`; `mix.wav`, with the person on the left and the answers on
    the right, in sync; and a film, with the pictures of the client, the sound of
    both sides, and the subtitles as a track.

    Try:
        antiphon sessions export sess_68af
        antiphon sessions export sess_68af -o session.zip
        antiphon sessions export sess_68af --flac

    Args:
        session: its id, or the beginning of it.
        output: a folder, or a zip file if the name ends in .zip; by default a folder with the session's id.
        flac: save audio as FLAC, smaller than WAV and lossless; needs the extra `speech`.
        film: make the film, which needs ffmpeg or the extra `formats`; by default where it can be made.
    """
    client = server.find_server(shell, url, file)
    recording = _download(client, _resolve_id(client, session))
    target = shell.cwd / (output or recording.record.id)
    if target.exists():
        raise UsageError(f"{target} exists already.")
    film_writer = _film_writer(recording, shell, is_wanted=film)
    try:
        exporting.save(target, exporting.export_files(recording, is_flac=flac, film_writer=film_writer))
    except OSError as error:
        raise UsageError(f"{target} can't be written: {error.strerror}.") from None
    shell.say(str(target))


@app.command
def replay(
    session: str,
    /,
    *,
    model: str | None = None,
    fast: bool = False,
    record: bool = False,
    to: str | None = None,
    as_json: JsonFlag = False,
    url: UrlFlag = None,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Send a recorded client's side again, and compare the answers.

    By default it goes to the same model, at the same pace. Where the client
    waited for an answer, the replay waits, too.

    Times run from the end of the person's turn until the answer BEGINS (the
    model stops listening), and until its first TEXT and SOUND; LENGTH is how
    long its audio is. The last rows show the median and the worst of all turns.

    Try:
        antiphon sessions replay sess_68af
        antiphon sessions replay sess_68af --fast --model other

    Args:
        session: its id, or the beginning of it.
        model: which model answers; by default the recording's.
        fast: send as fast as possible, not at the recorded pace; not for full duplex, which depends on it.
        record: ask the server to record this session, too.
        to: base address of another server to send it to; by default the one that has the recording.
    """
    client = server.find_server(shell, url, file)
    recording = _download(client, _resolve_id(client, session))
    if fast and recording.is_full_duplex:
        raise UsageError("--fast does not work in full duplex, where the answers depend on the pace.")
    target = client if to is None else ApiClient(to, client.key, ca_file=server.trusted_authority(shell, to, file))
    _check_model(target, recording, model)
    if not fast:
        shell.note(f"this takes as long as the session did, {recording.record.duration_ms / 1000:.1f} s, or longer if answers do")
    turns = asyncio.run(SessionReplay(recording, is_fast=fast, model=model).run(target, recording.session_path(model, is_recorded=record)))
    if as_json:
        return shell.say_json({"session": recording.record.id, "model": model or recording.record.model, **to_dict(turns)})
    if not turns:
        return shell.say("there are no answers in the recording, and none came now")
    for line in align_columns([*compare.rows(turns)]):
        shell.say(line if len(line) <= shell.columns else line[: shell.columns - 1] + "…")
    shell.say()
    shell.say_rows([*compare.totals(turns)])
    return shell.say(f"\n{compare.verdict(turns)}")


@app.command(usage="Usage: antiphon sessions rm [OPTIONS] SESSIONS...")
def rm(*sessions: str, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Delete recordings.

    Try:
        antiphon sessions rm sess_68af

    Args:
        sessions: ids, or the beginnings of them.
    """
    if not sessions:
        raise UsageError("Name at least one recording; `antiphon sessions list` shows them.")
    client = server.find_server(shell, url, file)
    for session_id in [_resolve_id(client, session) for session in sessions]:
        client.delete(_session_path(session_id))
        shell.say(f"{session_id} is deleted")


# Requests


def _check_model(target: ApiClient, recording: DownloadedRecording, model: str | None) -> None:
    """
    Check that `--model` decides which model answers.

    Raises:
        UsageError: it doesn't: the server has no such model, and in MiniCPM-o's protocol it would take another one; or
            the server chooses the model itself.
    """
    if model is None:
        return
    if recording.record.mode == "transcription":
        raise UsageError("--model is for conversations; what transcribes is the server's `realtime.transcription_model`.")
    if not target.has_model(model):
        raise UsageError(f"The server at {target.base_url} has no model '{model}'; it has {quote_list(target.list_models())}.")


def _session_path(session_id: str) -> str:
    return f"{_PATH}/{path_segment(_ID_NAME, session_id)}"


def _list_sessions(client: ApiClient, limit: int) -> Iterator[RecordedSession]:
    after = ""
    while limit > 0:
        page = client.read(f"{_PATH}?limit={min(limit, _PAGE_SIZE)}{after}", RecordedSessionList)
        yield from page.data
        limit -= len(page.data)
        if not page.has_more or page.last_id is None:
            return
        after = f"&after={quote(page.last_id, safe='')}"


def _resolve_id(client: ApiClient, prefix: str) -> str:
    """The one id that begins with `prefix`; `prefix` itself if none does."""
    path_segment(_ID_NAME, prefix)  # the empty one would be the beginning of every id
    # Of what is probably a whole id, the newest recordings are enough to look at.
    limit = _PAGE_SIZE if len(prefix) > _SHORT_ID_LENGTH else _MAX_LISTED
    ids = [session.id for session in _list_sessions(client, limit) if session.id.startswith(prefix)]
    if len(ids) > 1 and prefix not in ids:
        raise UsageError(f"More than one recording begins with '{prefix}': {', '.join(ids[:3])}.")
    return ids[0] if len(ids) == 1 else prefix


def _download(client: ApiClient, session_id: str) -> DownloadedRecording:
    with zipfile.ZipFile(io.BytesIO(client.get_file(_session_path(session_id) + "/download"))) as archive:
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    if META not in files:
        raise UpstreamError(f"The server has no files of {session_id}; `sessions show {session_id[:_SHORT_ID_LENGTH]}` says why.")
    # The names come from the server, and are written into a folder of the user's: take none that leads out of it.
    return DownloadedRecording({name: content for name, content in files.items() if _FILE_NAME.fullmatch(name)})


def _film_writer(recording: DownloadedRecording, shell: Shell, *, is_wanted: bool | None) -> FilmWriter | None:
    """What makes the film; None for no film."""
    if is_wanted is False or (is_wanted is None and not exporting.can_be_seen_or_heard(recording)):
        return None
    writer = find_writer(shell.environ.get("PATH"))
    if isinstance(writer, FilmWriter):
        return writer
    if is_wanted:
        raise UsageError(f"There is no film: {writer}. {install_hint('formats')}")
    shell.note(f"without a film: {writer}. {install_hint('formats')}")
    return None


# Formatting


def _format_fact(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    if name.endswith("_at"):
        return f"{format_time(value)} UTC"
    return {"duration_ms": f"{value / 1000:.1f} s", "bytes": _format_bytes(value)}.get(name, str(value))


def _format_bytes(size_bytes: int) -> str:
    if size_bytes < 1_000:
        return f"{size_bytes} bytes"
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 100_000 else f"{size_bytes / 1e3:.1f} kB"


def _file_lines(files: Sequence[JsonDict]) -> Iterator[str]:
    """A line for each file, and one for each folder, which may hold hundreds."""
    folders: dict[str, list[int]] = {}
    for one in files:
        folder, slash, _ = one["name"].rpartition("/")
        if slash:
            folders.setdefault(folder, []).append(one["bytes"])
        else:
            yield f"{one['name']} ({_format_bytes(one['bytes'])})"
    for folder, sizes in folders.items():
        yield f"{folder}/ ({len(sizes)}, {_format_bytes(sum(sizes))})"


def _length_size_state(session: RecordedSession) -> Sequence[str]:
    short = ", cut short" if session.bytes else ", no files"  # `show` says why
    state = session.status + (short if session.truncated else "")
    if session.status == "live":  # neither is known yet
        return "-", "-", state
    return f"{session.duration_ms / 1000:.1f} s", f"{session.bytes / 1e6:.1f} MB", state
