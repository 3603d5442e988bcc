"""Models that are missing or modified: the error comes when they are loaded, and says what to do."""

import asyncio

import pytest

from antiphon.errors import ServerError
from antiphon.speech.turn_detection.smart_turn import SmartTurn
from antiphon.speech.turn_detection.vad import SileroVad


def start(part):
    async def run():
        try:
            await part.start()
        finally:
            stopped = part.stop()
            if stopped is not None:
                await stopped

    asyncio.run(run())


@pytest.mark.parametrize(("part", "name"), [(SileroVad, "silero-vad"), (SmartTurn, "smart-turn-v3.2")])
def test_a_missing_model_is_named_with_how_to_get_it(part, name, tmp_path):
    with pytest.raises(ServerError, match=f"{tmp_path}.*antiphon models pull {name}"):
        start(part(tmp_path / "model.onnx"))


@pytest.mark.parametrize(("part", "name"), [(SileroVad, "silero-vad"), (SmartTurn, "smart-turn-v3.2")])
def test_a_file_that_is_no_model_is_named(part, name, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model at all")
    with pytest.raises(ServerError, match=f"'{name}' in {tmp_path}.* can't be loaded"):
        start(part(tmp_path / "model.onnx"))
