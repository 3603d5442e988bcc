"""Which commands are buffered until there is a worker."""

import pytest

from antiphon.engine_api import commands
from antiphon.engine_api.engine import EngineOverrun
from antiphon.runtime.scheduling.pending import MAX_COMMANDS, MAX_MEDIA, MAX_REQUESTS, MEDIA_LIMIT_BYTES, PendingCommands
from support.runtime.queued_stage import asked


def test_sound_is_kept_within_bounds_the_latest_of_it_and_what_is_asked_is_kept_beside_it():
    kept = PendingCommands()
    kept.add(asked())
    for number in range(100):
        kept.add(commands.AppendAudio(bytes([number]) * 16_000))
    words = list(kept.take())
    assert isinstance(words[0], commands.Respond)
    assert words[-1].pcm[0] == 99
    assert sum(len(word.pcm) for word in words[1:]) <= MEDIA_LIMIT_BYTES


@pytest.mark.parametrize(("word", "most"), [(asked, MAX_REQUESTS), (commands.ForceListen, MAX_COMMANDS)])
def test_more_than_can_be_kept_is_refused(word, most):
    kept = PendingCommands()
    for _ in range(most):
        kept.add(word())
    with pytest.raises(EngineOverrun):
        kept.add(word())


def test_pictures_are_kept_within_the_bounds_of_sound():
    kept = PendingCommands()
    for number in range(4):
        kept.add(commands.AppendImage(bytes([number]) * (MEDIA_LIMIT_BYTES // 2)))
    assert [word.jpeg[0] for word in kept.take()] == [2, 3]
    kept.add(commands.AppendAudio(bytes(MEDIA_LIMIT_BYTES)))
    assert len(list(kept.take())) == 1  # what was taken leaves room


def test_of_sound_in_tiny_pieces_no_more_are_kept_than_can_be_counted():
    kept = PendingCommands()
    for number in range(MAX_MEDIA + 10):
        kept.add(commands.AppendAudio(number.to_bytes(2)))
    kept.add(commands.ForceListen())
    *sound, last = kept.take()
    assert [int.from_bytes(each.pcm) for each in sound] == [*range(10, MAX_MEDIA + 10)]
    assert last == commands.ForceListen()


def test_a_request_that_was_cancelled_leaves_room():
    kept = PendingCommands()
    for number in range(MAX_REQUESTS):
        kept.add(asked(f"resp_{number}"))
    assert kept.cancel("resp_3") and not kept.cancel("resp_3")
    kept.add(asked("resp_3"))
    with pytest.raises(EngineOverrun):
        kept.add(asked("resp_x"))


def test_what_says_nothing_and_what_is_of_use_only_now_is_not_kept():
    kept = PendingCommands()
    for word in (commands.AppendAudio(b""), commands.AppendImage(b""), commands.Prepare(asked())):
        kept.add(word)
    assert list(kept.take()) == []
