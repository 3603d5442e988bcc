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

from antiphon.cli import own
from antiphon.cli.client import Client
from antiphon.cli.flags import Around, ConfigFile, Json, Url
from antiphon.cli.shell import UsageMistake

if TYPE_CHECKING:
    from antiphon.cli.sessions_replay import Pair
    from antiphon.runtime.replay import Recorded
    from antiphon.runtime.transcript import Turn

_HELP = """
See, export, replay and remove recordings of sessions.

A running server has them: the one configured, or the one that --url names.

Try:
    antiphon sessions list
    antiphon sessions show sess_68af
    antiphon sessions export sess_68af -o session.zip
"""

_PATH = "/v1/sessions"
_PAGE = 100
_MOST_LISTED = 10_000
_NAME = re.compile(r"(\w+/)?\w[\w.-]*", re.ASCII)
_SHOWN_CHARACTERS = 60
_SHORT = len("sess_") + 8
"""So much of an id is listed: enough to find it by, and a line is no wider than a terminal."""


def verbs() -> App:
    """`sessions` and what can be done with them."""
    app = App(name="sessions", help=_HELP)
    app.command(list_, name="list")
    for verb in (show, replay, export, rm):
        app.command(verb)
    return app


def list_(*, limit: int = 20, as_json: Json = False, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
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
        raise UsageMistake("--limit must be 1 or more.")
    sessions = list(_listed(own.running(shell, url, file), limit))
    if as_json:
        return shell.say_json(sessions)
    if not sessions:
        return shell.note("there are no recordings; `recording.when` says which sessions are recorded")
    rows = [(one["id"][:_SHORT], _when(one["created_at"]), one["protocol"], one["mode"], one["model"], *_facts(one)) for one in sessions]
    return shell.say_rows([("ID", "BEGAN (UTC)", "PROTOCOL", "MODE", "MODEL", "LENGTH", "SIZE", "STATE"), *rows])


def show(session: str, /, *, as_json: Json = False, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    Show a recording: what it is, its files, and who said what.

    Try:
        antiphon sessions show sess_68af

    Args:
        session: the id, or how it begins.
    """
    from antiphon.runtime.recorder_files import lines_of  # noqa: PLC0415 - with all wire types; `--help` needs none
    from antiphon.runtime.transcript import turns_of  # noqa: PLC0415 - as above

    client = own.running(shell, url, file)
    found = client.get(_at(_id(client, session)))
    turns = turns_of(lines_of(client.file(_at(found["id"]) + "/events"))) if found["status"] != "live" else []
    if as_json:
        return shell.say_json(found | {"turns": turns})
    facts = [(name, _fact(name, value)) for name, value in found.items() if name not in ("object", "files") and value not in (None, "")]
    shell.say_rows([*facts, *(("file", line) for line in _files(found.get("files", ())))])
    shell.say()
    return shell.say_rows([(f"{turn.at_s:7.2f} s", turn.who, turn.text or "(nothing)") for turn in turns])


def export(
    session: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    url: Url = None,
    file: ConfigFile = None,
    shell: Around,
) -> None:
    """
    Save a recording with all of its files.

    Besides what was recorded there are then `transcript.md`, for people to
    read, and `mix.wav`, with the person on the left and the answers on the
    right, both on one clock.

    Try:
        antiphon sessions export sess_68af
        antiphon sessions export sess_68af -o session.zip

    Args:
        session: the id, or how it begins.
        output: a zip file, by its ending, or else a folder; a folder with the name of the session unless given.
    """
    client = own.running(shell, url, file)
    recorded = _downloaded(client, _id(client, session))
    target = shell.cwd / (output or recorded.record.id)
    if target.exists():
        raise UsageMistake(f"There is a {target} already.")
    files = {**recorded.files, **_made(recorded)}
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        for name, content in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(content)
    shell.say(str(target))


def replay(
    session: str,
    /,
    *,
    model: str | None = None,
    fast: bool = False,
    record: bool = False,
    to: str | None = None,
    as_json: Json = False,
    url: Url = None,
    file: ConfigFile = None,
    shell: Around,
) -> None:
    """
    Say again what the client said, and compare the answers.

    It is said at the pace of then, to the model of then; where an answer had
    to be over before the next thing was said, it is waited for now too.

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
    from antiphon.cli.sessions_replay import Replay  # noqa: PLC0415 - with its HTTP client; `--help` needs none

    client = own.running(shell, url, file)
    recorded = _downloaded(client, _id(client, session))
    if fast and recorded.is_full_duplex:
        raise UsageMistake("In full duplex both sides speak by the clock: leave out --fast.")
    target = Client(to, client.key) if to is not None else client
    found = asyncio.run(Replay(recorded, fast=fast).run(target, recorded.path(model, is_recorded=record)))
    if as_json:
        return shell.say_json([{"same": pair.same, "recorded": pair.recorded, "replayed": pair.replayed} for pair in found])
    for number, pair in enumerate(found, start=1):
        shell.say_rows([(f"{number}", "recorded", *_told(pair.recorded)), ("=" if pair.same else "!", "replayed", *_told(pair.replayed))])
    return shell.say(_summary(found))


def rm(*sessions: str, url: Url = None, file: ConfigFile = None, shell: Around) -> None:
    """
    Delete recordings.

    Try:
        antiphon sessions rm sess_68af

    Args:
        sessions: ids, or how they begin.
    """
    if not sessions:
        raise UsageMistake("Which one? `antiphon sessions list` has them.")
    client = own.running(shell, url, file)
    for session_id in [_id(client, session) for session in sessions]:
        client.delete(_at(session_id))
        shell.say(f"{session_id} is deleted")


# What the server has


def _at(session_id: str) -> str:
    return f"{_PATH}/{quote(session_id, safe='')}"


def _listed(client: Client, limit: int) -> Iterator[dict[str, Any]]:
    after = ""
    while limit > 0:
        page = client.get(f"{_PATH}?limit={min(limit, _PAGE)}{after}")
        yield from page["data"]
        limit -= len(page["data"])
        if not page["has_more"]:
            return
        after = f"&after={quote(page['last_id'], safe='')}"


def _id(client: Client, beginning: str) -> str:
    """The id that begins so."""
    if len(beginning) > _SHORT:  # whole, or nearly: one that is not among the newest is asked for as it is
        listed = client.get(f"{_PATH}?limit={_PAGE}")["data"]
    else:
        listed = list(_listed(client, _MOST_LISTED))
    found = [one["id"] for one in listed if one["id"].startswith(beginning)]
    if len(found) > 1 and beginning not in found:
        raise UsageMistake(f"More than one recording begins with '{beginning}': {', '.join(found[:3])}.")
    return found[0] if len(found) == 1 else beginning


def _downloaded(client: Client, session_id: str) -> "Recorded":
    from antiphon.runtime.replay import Recorded  # noqa: PLC0415 - with all wire types; `--help` needs none

    with zipfile.ZipFile(io.BytesIO(client.file(_at(session_id) + "/download"))) as archive:
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    # They are written into a folder of the user's: whatever the server says, no further.
    return Recorded({name: content for name, content in files.items() if _NAME.fullmatch(name)})


def _made(recorded: "Recorded") -> Mapping[str, bytes]:
    """What is made of a recording."""
    from antiphon.runtime.mixing import mixed, sound_of  # noqa: PLC0415 - as above
    from antiphon.runtime.transcript import transcript, turns_of  # noqa: PLC0415 - as above

    sounds = {name: sound_of(content) for name, content in recorded.files.items() if name.endswith(".wav") and "/" not in name}
    made = {"transcript.md": transcript(recorded.record, turns_of(recorded.lines)).encode()}
    return made | ({"mix.wav": mixed(recorded.lines, sounds)} if sounds else {})


# How it is told


def _fact(name: str, value: Any) -> str:
    return f"{_when(value)} UTC" if name.endswith("_at") else str(value)


def _files(files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
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


def _when(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _facts(session: Mapping[str, Any]) -> Sequence[str]:
    state = session["status"] + (f", {session['truncated']}" if session["truncated"] else "")
    if session["status"] == "live":  # of which neither is known yet
        return "-", "-", state
    return f"{session['duration_ms'] / 1000:.1f} s", f"{session['bytes'] / 1e6:.1f} MB", state


def _told(turn: "Turn | None") -> Sequence[str]:
    if turn is None:
        return "-", "-"
    text = turn.text if len(turn.text) <= _SHOWN_CHARACTERS else turn.text[: _SHOWN_CHARACTERS - 1] + "…"
    return f"at {turn.at_s:.2f} s" if turn.first_s is None else f"after {1000 * turn.first_s:.0f} ms", text or "(nothing)"


def _summary(found: "Sequence[Pair]") -> str:
    same = sum(pair.same for pair in found)
    return f"{len(found)} answers, {same} of them the same"
