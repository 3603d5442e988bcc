"""
Smart-Turn, against what another implementation of it says.

`smart_turn_reference.json` has, for recordings or their beginnings with 0.2 s of silence after them, some columns of the features and the
likelihood, as Pipecat 1.14 computes them from the same weights.
"""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from antiphon.speech.turn_detection.smart_turn import FRAMES, MAX_PENDING, MEL_BANDS, SmartTurn, log_mel_features

REFERENCE = json.loads(Path(__file__).with_name("smart_turn_reference.json").read_text())
MODEL = "smart-turn-v3.2/smart-turn-v3.2-cpu.onnx"


def sound(case, recording):
    pcm = recording(case["recording"])
    return (pcm if case["seconds"] is None else pcm[: int(case["seconds"] * 16_000) * 2]) + bytes(6_400)


@pytest.mark.parametrize("case", REFERENCE.values(), ids=REFERENCE)
def test_the_features_are_those_of_another_implementation(case, recording):
    ours = log_mel_features(sound(case, recording))
    assert ours.shape == (MEL_BANDS, FRAMES)
    for frame, column in case["frames"].items():
        assert np.abs(ours[:, int(frame)] - column).max() < 1e-3


@pytest.mark.parametrize("pcm", [b"", b"\x01\x00", bytes(20 * 32_000)], ids=["nothing", "a sample", "20 s of silence"])
def test_any_sound_has_features(pcm):
    assert np.isfinite(log_mel_features(pcm)).all()


def test_only_the_last_eight_seconds_count(recording):
    pcm = recording("lv_0870") * 2
    assert (log_mel_features(pcm) == log_mel_features(pcm[-8 * 32_000 :])).all()


@pytest.mark.weights
def test_the_likelihood_is_that_of_another_implementation(recording, weights):
    async def judge():
        turn = SmartTurn(weights / MODEL)
        await turn.start()
        judged = [await turn.likelihood(sound(case, recording)) for case in REFERENCE.values()]
        await turn.stop()
        return judged

    assert asyncio.run(judge()) == pytest.approx([case["likelihood"] for case in REFERENCE.values()], abs=0.02)


@pytest.mark.weights
def test_whoever_asks_when_too_many_do_is_told_that_nobody_knows(recording, weights):
    async def judge():
        turn, pcm = SmartTurn(weights / MODEL), recording("cards_001")
        await turn.start()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(turn.likelihood(pcm)) for _ in range(MAX_PENDING + 2)]
        later = await turn.likelihood(pcm)
        await turn.stop()
        return [task.result() for task in asked], later

    asked, later = asyncio.run(judge())
    assert asked.count(None) == 2 and later is not None


@pytest.mark.weights
def test_one_who_no_longer_waits_makes_room_for_others(recording, weights):
    async def judge():
        turn, pcm = SmartTurn(weights / MODEL), recording("cards_001")
        await turn.start()
        for _ in range(2 * MAX_PENDING):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await turn.likelihood(pcm)
        likelihood = await turn.likelihood(pcm)
        await turn.stop()
        return likelihood

    assert asyncio.run(judge()) is not None
