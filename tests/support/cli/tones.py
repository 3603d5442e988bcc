"""Audio that a scripted model takes for speech: anything loud."""

import wave
from array import array
from pathlib import Path


def tone(ms: int, rate_hz: int = 24_000, level: int = 8_000) -> array:
    """Samples of a buzz of 100 Hz."""
    half = rate_hz // 200
    return array("h", [level if index // half % 2 else -level for index in range(ms * rate_hz // 1000)])


def write_wav(path: Path, frames: bytes, rate_hz: int = 24_000, width: int = 2, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate_hz)
        file.writeframes(frames)
    return path


def question(path: Path, ms: int = 400) -> Path:
    """A recording that passes for speech."""
    return write_wav(path, tone(ms).tobytes())
