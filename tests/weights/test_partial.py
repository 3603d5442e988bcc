"""What of a download survives an interruption."""

from hypothesis import given, strategies as st

from antiphon.weights.partial import PartialFile


def test_what_a_piece_left_half_done_is_cut_off(tmp_path):
    part = PartialFile(tmp_path / "file")
    _add(part, b"whole", "a")
    _add(part, b"half")
    assert part.resume(["a", "b"]) == 1
    assert part.path.read_bytes() == b"whole"


def test_pieces_of_another_list_are_worth_nothing(tmp_path):
    part = PartialFile(tmp_path / "file")
    _add(part, b"whole", "a==1")
    assert part.resume(["a==2", "b"]) == 0
    assert part.size_bytes == 0


def test_a_journal_that_promises_more_than_there_is_is_not_believed(tmp_path):
    part = PartialFile(tmp_path / "file")
    _add(part, b"whole", "a")
    part.truncate(2)
    assert part.resume(["a"]) == 0
    assert part.size_bytes == 0


def test_a_broken_journal_is_as_good_as_none(tmp_path):
    part = PartialFile(tmp_path / "file")
    _add(part, b"whole", "a")
    (tmp_path / "file.part.json").write_text("{")
    assert part.resume(["a"]) == 0


def test_a_finished_file_leaves_nothing_else(tmp_path):
    part = PartialFile(tmp_path / "file")
    _add(part, b"whole", "a")
    part.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=6), st.data())
def test_wherever_it_is_cut_off_it_resumes_to_the_same_file(tmp_path_factory, pieces, data):
    part = PartialFile(tmp_path_factory.mktemp("partial") / "file")
    names = [str(number) for number in range(len(pieces))]
    whole = data.draw(st.integers(0, len(pieces)))
    for name, piece in zip(names[:whole], pieces, strict=False):
        _add(part, piece, name)
    if whole < len(pieces):
        _add(part, pieces[whole][: data.draw(st.integers(0, len(pieces[whole])))])
    done = part.resume(names)
    assert done == whole
    for piece in pieces[done:]:
        _add(part, piece)
    assert part.path.read_bytes() == b"".join(pieces)


def _add(part, content, whole=None):
    with part.open_for_append() as out:
        out.write(content)
    if whole is not None:
        part.mark_complete(whole)
