"""A text read aloud, and given back as it was written."""

from contextlib import aclosing

from antiphon.speech.text.aloud import synthesize_clause
from antiphon.speech.text.speakable import TextNormalizer
from support.speech.voices import run, started, tones


def test_what_is_heard_is_shown_as_it_was_written(tmp_path):
    async def scenario():
        async with started(tones(tmp_path)) as mouth:
            speakable = TextNormalizer()
            texts = ("It is **$5**.\n", "```\n", "x = 1\n", "```\n")
            pieces = [[piece async for piece in synthesize_clause(mouth, text, speakable)] for text in texts]
            assert [piece.text for piece in pieces[0]] == ["It ", "is ", "**$5", "**.\n"]
            assert ["".join(piece.text for piece in each) for each in pieces[1:]] == list(texts[1:])
            assert [any(piece.pcm for piece in each) for each in pieces] == [True, True, False, False]

    run(scenario())


def test_closing_it_stops_the_work(tmp_path):
    async def scenario():
        async with started(tones(tmp_path)) as mouth:
            async with aclosing(synthesize_clause(mouth, "One two.", TextNormalizer())) as reading:
                assert (await anext(reading)).text == "One "
            assert [piece.text async for piece in synthesize_clause(mouth, "Three.", TextNormalizer())] == ["Three."]

    run(scenario())
