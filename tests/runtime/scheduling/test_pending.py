"""What is kept for a worker that is not there yet, and what is not."""

import pytest

from antiphon.engine_api import commands
from antiphon.engine_api.engine import EngineOverrun
from antiphon.runtime.scheduling.pending import ASKS_LIMIT, SOUND_LIMIT_BYTES, WORDS_LIMIT, Kept
from support.runtime.queued_stage import asked


def test_sound_is_kept_within_bounds_the_latest_of_it_and_what_is_asked_is_kept_beside_it():
    kept = Kept()
    kept.keep(asked())
    for number in range(100):
        kept.keep(commands.Hear(bytes([number]) * 16_000))
    words = list(kept.take())
    assert isinstance(words[0], commands.Respond)
    assert words[-1].pcm[0] == 99
    assert sum(len(word.pcm) for word in words[1:]) <= SOUND_LIMIT_BYTES


@pytest.mark.parametrize(("word", "most"), [(asked, ASKS_LIMIT), (commands.Listen, WORDS_LIMIT)])
def test_more_than_can_be_kept_is_refused(word, most):
    kept = Kept()
    for _ in range(most):
        kept.keep(word())
    with pytest.raises(EngineOverrun):
        kept.keep(word())


def test_pictures_are_kept_within_the_bounds_of_sound():
    kept = Kept()
    for number in range(4):
        kept.keep(commands.See(bytes([number]) * (SOUND_LIMIT_BYTES // 2)))
    assert [word.jpeg[0] for word in kept.take()] == [2, 3]
    kept.keep(commands.Hear(bytes(SOUND_LIMIT_BYTES)))
    assert len(list(kept.take())) == 1  # what was taken leaves room


def test_what_says_nothing_and_what_is_of_use_only_now_is_not_kept():
    kept = Kept()
    for word in (commands.Hear(b""), commands.See(b""), commands.Foresee(asked())):
        kept.keep(word)
    assert list(kept.take()) == []
