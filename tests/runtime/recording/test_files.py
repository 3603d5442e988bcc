"""The files of a recording: written over, and repaired."""

import pytest

from antiphon.records import SessionRecord
from antiphon.runtime.recording.files import read_meta, repair, write_meta


def record(reason):
    return SessionRecord(
        id="sess_1", tenant="", key_id=None, protocol="realtime", mode="realtime", model="m", created_at=1, truncated=reason
    )


def test_a_record_is_read_as_it_was_written_last_however_long_it_was_before(tmp_path):
    for reason in ("x" * 10_000, "short", "y" * 5000, None):
        write_meta(tmp_path, record(reason))
        assert read_meta(tmp_path) == record(reason)
    assert (tmp_path / "meta.json").stat().st_size == 4096


@pytest.mark.parametrize(
    ("content", "rest"),
    [
        (b"", b""),
        (b"{}", b""),
        (b"{}\n{", b"{}\n"),
        (b"{}\n" + b"x" * 200_000, b"{}\n"),
        (b"x" * 200_000, b""),
        (b"x" * 200_000 + b"\n", b"x" * 200_000 + b"\n"),
    ],
)
def test_events_are_cut_after_the_last_whole_line(tmp_path, content, rest):
    events = tmp_path / "events.jsonl"
    events.write_bytes(content)
    assert repair(tmp_path) == len(rest)
    assert events.read_bytes() == rest
