"""A synthesizer that plays tones, and helpers for tests of synthesizers."""

import asyncio
from pathlib import Path

from antiphon.speech.tts.process import ProcessSynthesizer, VoiceLimits
from support.speech import tone_voice

PROGRAM = (tone_voice.__file__,)


def tone_synthesizer(folder: Path, *, notice=lambda _line: None, **patience):
    return ProcessSynthesizer(
        PROGRAM,
        [folder],
        voices=("high", "low"),
        rate_hz=16_000,
        aliases={"alloy": "low"},
        limits=VoiceLimits(**patience),
        notice=notice,
    )


async def collect_audio(mouth, text, voice=None, speed=1.0):
    return [piece async for piece in mouth.synthesize(text, voice, speed)]


async def until(condition):
    """Wait for something that another process does without reporting it."""
    while not condition():  # noqa: ASYNC110 - it is not of this loop
        await asyncio.sleep(0.01)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
