"""Whether a file is the one that the catalogue names."""

import hashlib

from antiphon.weights import verify
from antiphon.weights.catalogue import ModelFile


def test_a_good_file_is_read_once(tmp_path):
    path, file, told = _file(tmp_path), _entry(b"good"), []
    assert verify.is_intact(path, file, lambda *report: told.append(report))
    assert verify.is_intact(path, file, lambda *report: told.append(report))
    assert told == [("checking file", 4, 4)]


def test_a_file_touched_since_is_read_again(tmp_path):
    path, file = _file(tmp_path), _entry(b"good")
    assert verify.is_intact(path, file, lambda *_: None)
    path.write_bytes(b"evil")
    assert not verify.is_verified(path, file)
    assert not verify.is_intact(path, file, lambda *_: None)


def test_a_file_of_another_length_is_not_read_at_all(tmp_path):
    told = []
    assert not verify.is_intact(_file(tmp_path), _entry(b"longer"), lambda *report: told.append(report))
    assert told == []


def test_a_forgotten_file_is_gone_with_all_that_is_known_of_it(tmp_path):
    path = _file(tmp_path)
    verify.is_intact(path, _entry(b"good"), lambda *_: None)
    verify.remove(path)
    assert list(tmp_path.iterdir()) == []


def test_a_memory_that_makes_no_sense_is_none(tmp_path):
    path = _file(tmp_path)
    (tmp_path / "file.verified").write_text("yes")
    assert not verify.is_verified(path, _entry(b"good"))


def _file(folder):
    path = folder / "file"
    path.write_bytes(b"good")
    return path


def _entry(content):
    return ModelFile("file", len(content), hashlib.sha256(content).hexdigest(), ())
