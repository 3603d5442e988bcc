"""`antiphon sessions`: list, show, replay, export, rm."""

import asyncio
import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from antiphon.cli.common import server
from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter, UrlFlag
from antiphon.cli.common.shell import UsageError, align_columns
from antiphon.errors import UpstreamError

if TYPE_CHECKING:
    from antiphon.runtime.replay.steps import DownloadedRecording

_HELP = """
See, export, replay and remove recordings of sessions.

A running server has them: the one configured, or the one that --url names.

Try:
    antiphon sessions list
    antiphon sessions show sess_68af
    antiphon sessions export sess_68af -o session.zip
"""

_PATH = "/v1/sessions"
_PAGE_SIZE = 100
_MAX_LISTED = 10_000
_FILE_NAME = re.compile(r"(\w+/)?\w[\w.-]*", re.ASCII)
_SHORT_ID_LENGTH = len("sess_") + 8
"""So much of an id is listed: enough to find it by, and a line is no wider than a terminal."""


def build_app() -> App:
    """`sessions` and what can be done with them."""
    app = App(name="sessions", help=_HELP)
    app.command(list_, name="list")
    for verb in (show, replay, export, rm):
        app.command(verb)
    return app


def list_(*, limit: int = 20, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the recordings, the newest first.

    Ids are cut short, as their beginning is enough; --json has all of them.

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
            one["id"][:_SHORT_ID_LENGTH],
            _format_time(one["created_at"]),
            one["protocol"],
            one["mode"],
            one["model"],
            *_length_size_state(one),
        )
        for one in sessions
    ]
    return shell.say_rows([("ID", "BEGAN (UTC)", "PROTOCOL", "MODE", "MODEL", "LENGTH", "SIZE", "STATE"), *rows])


def show(session: str, /, *, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Show a recording: what it is, its files, and who said what.

    Try:
        antiphon sessions show sess_68af

    Args:
        session: the id, or how it begins.
    """
    from antiphon.runtime.recording.files import EVENTS, decode_lines  # noqa: PLC0415 - with all wire types; `--help` needs none
    from antiphon.runtime.recording.transcript import read_turns  # noqa: PLC0415 - as above

    client = server.find_server(shell, url, file)
    found = client.get(_session_path(_resolve_id(client, session)))
    has_events = any(one["name"] == EVENTS for one in found.get("files", ()))
    turns = read_turns(decode_lines(client.get_file(_session_path(found["id"]) + "/events"))) if has_events else []
    if as_json:
        return shell.say_json(found | {"turns": turns})
    facts = [
        (name, _format_fact(name, value)) for name, value in found.items() if name not in ("object", "files") and value not in (None, "")
    ]
    shell.say_rows([*facts, *(("file", line) for line in _file_lines(found.get("files", ())))])
    shell.say()
    return shell.say_rows([(f"{turn.at_s:7.2f} s", turn.role, turn.text or "(nothing)") for turn in turns])


def export(
    session: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    flac: bool = False,
    url: UrlFlag = None,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Save a recording with all of its files.

    Besides what was recorded there are then `transcript.md`, for people to
    read, and `mix.wav`, with the person on the left and the answers on the
    right, both on one clock.

    Try:
        antiphon sessions export sess_68af
        antiphon sessions export sess_68af -o session.zip
        antiphon sessions export sess_68af --flac

    Args:
        session: the id, or how it begins.
        output: a zip file, by its ending, or else a folder; a folder with the name of the session unless given.
        flac: sound as FLAC files, which are smaller and lose nothing; with the extra `speech`.
    """
    from antiphon.cli.commands import export as sessions_export  # noqa: PLC0415 - with all wire types; `--help` needs none

    client = server.find_server(shell, url, file)
    recorded = _download(client, _resolve_id(client, session))
    target = shell.cwd / (output or recorded.record.id)
    if target.exists():
        raise UsageError(f"There is a {target} already.")
    try:
        sessions_export.save(target, sessions_export.export_files(recorded, is_flac=flac))
    except OSError as error:
        raise UsageError(f"{target} can't be written: {error.strerror}.") from None
    shell.say(str(target))


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
    Say again what the client said, and compare the answers.

    It is said at the pace of then, to the model of then; where an answer had
    to be over before the next thing was said, it is waited for now too.

    Times are from the end of what the person said until the answer BEGINS
    (the model stops listening), and its first TEXT and SOUND; LENGTH is how
    long its sound is. The last rows have the middle and the worst of all turns.

    Try:
        antiphon sessions replay sess_68af
        antiphon sessions replay sess_68af --fast --model other

    Args:
        session: the id, or how it begins.
        model: who is to answer; else the recording's model.
        fast: as fast as it goes, not as fast as it was said; not for full duplex, which goes by the clock.
        record: ask the server to record this session too.
        to: base address of another server to say it to; else the one that has the recording.
    """
    from antiphon.cli.commands import compare  # noqa: PLC0415 - with all wire types; `--help` needs none
    from antiphon.cli.commands.replay import SessionReplay  # noqa: PLC0415 - with its HTTP client
    from antiphon.runtime.replay.compare import to_dict  # noqa: PLC0415 - as above

    client = server.find_server(shell, url, file)
    recorded = _download(client, _resolve_id(client, session))
    if fast and recorded.is_full_duplex:
        raise UsageError("In full duplex both sides speak by the clock: leave out --fast.")
    target = ApiClient(to, client.key) if to is not None else client
    if not fast:
        shell.note(f"this takes as long as the session did, {recorded.record.duration_ms / 1000:.1f} s, and longer where answers do")
    found = asyncio.run(SessionReplay(recorded, is_fast=fast).run(target, recorded.session_path(model, is_recorded=record)))
    if as_json:
        return shell.say_json({"session": recorded.record.id, "model": model or recorded.record.model, **to_dict(found)})
    if not found:
        return shell.say("there are no answers in the recording, and none came")
    for line in align_columns([*compare.rows(found)]):
        shell.say(line if len(line) <= shell.columns else line[: shell.columns - 1] + "…")
    shell.say()
    shell.say_rows([*compare.totals(found)])
    return shell.say(f"\n{compare.verdict(found)}")


def rm(*sessions: str, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Delete recordings.

    Try:
        antiphon sessions rm sess_68af

    Args:
        sessions: ids, or how they begin.
    """
    if not sessions:
        raise UsageError("Which one? `antiphon sessions list` has them.")
    client = server.find_server(shell, url, file)
    for session_id in [_resolve_id(client, session) for session in sessions]:
        client.delete(_session_path(session_id))
        shell.say(f"{session_id} is deleted")


# What the server has


def _session_path(session_id: str) -> str:
    return f"{_PATH}/{quote(session_id, safe='')}"


def _list_sessions(client: ApiClient, limit: int) -> Iterator[dict[str, Any]]:
    after = ""
    while limit > 0:
        page = client.get(f"{_PATH}?limit={min(limit, _PAGE_SIZE)}{after}")
        yield from page["data"]
        limit -= len(page["data"])
        if not page["has_more"]:
            return
        after = f"&after={quote(page['last_id'], safe='')}"


def _resolve_id(client: ApiClient, prefix: str) -> str:
    """The id that begins so."""
    if len(prefix) > _SHORT_ID_LENGTH:  # whole, or nearly: one that is not among the newest is asked for as it is
        listed = client.get(f"{_PATH}?limit={_PAGE_SIZE}")["data"]
    else:
        listed = list(_list_sessions(client, _MAX_LISTED))
    found = [one["id"] for one in listed if one["id"].startswith(prefix)]
    if len(found) > 1 and prefix not in found:
        raise UsageError(f"More than one recording begins with '{prefix}': {', '.join(found[:3])}.")
    return found[0] if len(found) == 1 else prefix


def _download(client: ApiClient, session_id: str) -> "DownloadedRecording":
    from antiphon.runtime.recording.files import META  # noqa: PLC0415 - with all wire types; `--help` needs none
    from antiphon.runtime.replay.steps import DownloadedRecording  # noqa: PLC0415 - as above

    with zipfile.ZipFile(io.BytesIO(client.get_file(_session_path(session_id) + "/download"))) as archive:
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    if META not in files:
        raise UpstreamError(f"Nothing of {session_id} was kept; `sessions show {session_id[:_SHORT_ID_LENGTH]}` says why.")
    # They are written into a folder of the user's: whatever the server says, no further.
    return DownloadedRecording({name: content for name, content in files.items() if _FILE_NAME.fullmatch(name)})


# How it is told


def _format_fact(name: str, value: Any) -> str:
    return f"{_format_time(value)} UTC" if name.endswith("_at") else str(value)


def _file_lines(files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each, save that of those in folders, which may be hundreds, there is one for all."""
    folders: dict[str, list[int]] = {}
    for one in files:
        folder, within, _ = one["name"].rpartition("/")
        if within:
            folders.setdefault(folder, []).append(one["bytes"])
        else:
            yield f"{one['name']} ({one['bytes']} bytes)"
    for folder, sizes in folders.items():
        yield f"{folder}/ ({len(sizes)}, {sum(sizes)} bytes)"


def _format_time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _length_size_state(session: Mapping[str, Any]) -> Sequence[str]:
    short = ", cut short" if session["bytes"] else ", no files"  # `show` says why
    state = session["status"] + (short if session["truncated"] else "")
    if session["status"] == "live":  # of which neither is known yet
        return "-", "-", state
    return f"{session['duration_ms'] / 1000:.1f} s", f"{session['bytes'] / 1e6:.1f} MB", state
