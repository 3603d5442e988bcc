"""A fake microphone and fake speakers, with the interface of the package sounddevice."""

import threading
from collections.abc import Callable


class Stream:
    """A device: while it is in use, `work` runs in a thread of its own, with the callback."""

    def __init__(self, callback, work: Callable[[Callable[[int | bytes], bytes]], None], latency: float, form: dict[str, object]) -> None:
        assert form == {"samplerate": 24_000, "channels": 1, "dtype": "int16", "blocksize": 480}
        self.latency = latency
        self._thread = threading.Thread(target=work, args=(callback,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *reason):
        self._thread.join()


class Sounds:
    """
    The fake library.

    Args:
        speak: gets a function that takes audio, as from a microphone.
        listen: gets a function that returns a number of bytes of audio, as for speakers.
    """

    class PortAudioError(Exception):
        pass

    def __init__(self, speak=lambda bring: None, listen=lambda want: None, *, latency_s: float = 0.0, is_broken: bool = False) -> None:
        self._speak = speak
        self._listen = listen
        self._latency_s = latency_s
        self._is_broken = is_broken

    def RawInputStream(self, *, callback, **form):
        if self._is_broken:
            raise self.PortAudioError("Error querying device -1")

        def work(call):
            self._speak(lambda sound: call(memoryview(sound), len(sound) // 2, None, None))

        return Stream(callback, work, 0.0, form)

    def RawOutputStream(self, *, callback, **form):
        def want(size):
            sound = bytearray(size)
            callback(sound, size // 2, None, None)
            return bytes(sound)

        return Stream(callback, lambda _call: self._listen(want), self._latency_s, form)
