"""Sessions to talk to."""

import pytest

from support.protocols.realtime_dialogues import Dialogue


@pytest.fixture
def talk_to():
    """Begins a dialogue; at its end, all that came must have been spoken of."""
    begun = []

    def begin(*arguments, **options):
        begun.append(Dialogue(*arguments, **options))
        return begun[-1]

    yield begin
    assert [dialogue.pending for dialogue in begun if dialogue.pending] == []
