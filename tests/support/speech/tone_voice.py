"""The process of a voice that plays tones; certain words in its text make it misbehave."""

import os
import signal
import threading
import time
from pathlib import Path

from antiphon.speech.tts.alignment import split_words
from antiphon.speech.tts.child import SynthesisStopped, VoiceUnavailable, serve

WORD_SAMPLES = 100


class Tones:
    def __init__(self, begin):
        self.notes = Path(begin.paths[0])
        if (self.notes / "missing").exists():
            raise VoiceUnavailable("There is no tone.")
        if (self.notes / "dead").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if (self.notes / "silent").exists():
            time.sleep(600)

    def synthesize(self, job):
        text = job.request.text
        if "crash" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in text:
            time.sleep(600)
        if "drone" in text:
            yield bytes(32 << 20), [(text, 16 << 20)]  # more than a frame can carry
        if "boom" in text:
            raise ValueError("no such word")
        if "hum" in text:
            for _ in range(2):
                yield bytes(20 << 20), [(text, 10 << 20)]
        for words in [[word] for word in split_words(text)] if "slowly" in text else [split_words(text)]:
            if "wait" in "".join(words).lower():
                self.wait(job)
            with (self.notes / "said").open("a") as said:
                said.write(f"{''.join(words).strip()}\n")
            yield b"\1\0" * WORD_SAMPLES * len(words), [(word, WORD_SAMPLES) for word in words]

    def wait(self, job):
        stopped = threading.Event()
        job.stop = stopped.set
        (self.notes / "waiting").touch()
        stopped.wait()
        (self.notes / "stopped").touch()
        raise SynthesisStopped


if __name__ == "__main__":
    serve(Tones)
