"""A transcriber with fixed words, and helpers for tests of transcribers."""

from antiphon.audio import size_bytes
from antiphon.engine_api.options import Transcription
from antiphon.speech.base import INPUT_RATE_HZ, TimedText, Transcript

OPTIONS = Transcription()


def silence(seconds):
    return bytes(size_bytes(seconds * 1000, INPUT_RATE_HZ))


class WordTranscriber:
    """
    A transcriber of a list of words, one each half second; audio that ends within a word gives only part of it.

    Attributes:
        asked: the length of each audio that it got, in milliseconds.
        fault: raised by the next call.
    """

    languages = ()
    takes_prompt = False
    has_times = True
    is_free = True

    def __init__(self, words):
        self.asked = []
        self.fault = None
        self._words = words
        self._at = 0

    async def transcribe(self, pcm, wish):
        ms = len(pcm) * 1000 // (2 * INPUT_RATE_HZ)
        self.asked.append(ms)
        if self.fault:
            fault, self.fault = self.fault, None
            raise fault
        whole, more = divmod(ms, 500)
        words = [*self._words[:whole], self._words[whole][: len(self._words[whole]) * more // 500]]
        segments = tuple(TimedText(word, at / 2, at / 2 + 0.5) for at, word in enumerate(words[:whole]))
        return Transcript(text=" ".join(filter(None, words)), segments=segments, language="en", tokens=whole)
