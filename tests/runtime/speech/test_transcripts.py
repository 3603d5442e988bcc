"""The memory of transcripts."""

import pytest

from antiphon.runtime.speech.transcripts import Transcripts, audio_key

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_transcript_is_its_tenants_alone():
    transcripts = Transcripts()
    transcripts.add(await audio_key("ada", "UklGRg=="), "Hello.")
    assert transcripts.find(await audio_key("ada", "UklGRg==")) == "Hello."
    assert transcripts.find(await audio_key("eve", "UklGRg==")) is None
    assert transcripts.find(await audio_key("ada", "UklGRh==")) is None


async def test_those_that_were_not_used_for_longest_are_forgotten():
    transcripts = Transcripts(limit_bytes=3 * 400)
    keys = [await audio_key("ada", str(number)) for number in range(4)]
    for key in keys[:3]:
        transcripts.add(key, "x" * 100)
    transcripts.add(keys[0], "y" * 100)
    assert transcripts.find(keys[1]) == "x" * 100
    transcripts.add(keys[3], "x" * 100)
    assert [transcripts.find(key) is None for key in keys] == [False, False, True, False]
    transcripts.add(keys[0], "x" * 5000)
    assert all(transcripts.find(key) is None for key in keys)
