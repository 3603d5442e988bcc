"""The speech models are run once before anybody waits for them."""

import asyncio

import pytest

from antiphon.config.settings import SpeechSettings
from antiphon.engines.cascade.parts import SpeechStack
from antiphon.errors import ApiError, ServerError
from antiphon.runtime.speech.service import SpeechService
from antiphon.speech.base import AudioChunk, Transcript


class Model:
    """Any of the speech models; `ran` are those that were run, in order."""

    def __init__(self, ran, fault=None):
        self.ran, self.fault = ran, fault
        self.is_loaded = asyncio.Event()

    async def start(self):
        if self.fault is not None:
            raise self.fault

    # As one that detects speech

    def open(self, on_frame):
        self.on_frame = on_frame
        return self

    def append_audio(self, pcm):
        self.ran.append("vad")
        self.on_frame(0, 0.0)

    def close(self):
        pass

    # As one that judges turns

    async def likelihood(self, pcm):
        self.ran.append("turn")

    # As one that transcribes

    async def transcribe(self, pcm, options):
        self.ran.append("transcriber")
        return Transcript(text="")

    # As one that speaks

    async def synthesize(self, text, voice=None, speed=1.0, context=None):
        self.ran.append("synthesizer")
        yield AudioChunk(b"", text)


def service(tmp_path, ran, fault=None, **settings):
    def model():
        return Model(ran, fault)

    stack = SpeechStack(vad=model(), smart_turn=model(), transcriber=model(), synthesizer=model())
    return SpeechService(SpeechSettings(**settings), tmp_path, {}, stack=stack)


def test_every_model_is_run_once(tmp_path):
    ran = []
    speech = service(tmp_path, ran)
    assert speech.warm_up_state == "off"
    asyncio.run(speech.warm_up())
    assert ran == ["synthesizer", "transcriber", "turn", "vad"]
    assert speech.warm_up_state == "done"


def test_models_on_other_servers_are_not_asked(tmp_path):
    ran = []
    there = "http://127.0.0.1:9/v1"
    asyncio.run(service(tmp_path, ran, stt_url=there, voice_url=there).warm_up())
    assert ran == ["turn", "vad"]


def test_models_that_can_not_be_loaded_are_told_of_and_not_waited_for(tmp_path):
    speech = service(tmp_path, [], ServerError("It is damaged."))
    with pytest.raises(ApiError, match="It is damaged"):
        asyncio.run(speech.warm_up())
    assert speech.warm_up_state == "failed"


@pytest.mark.parametrize("what", ["loaded", "run"])
def test_whatever_keeps_a_model_from_answering_ends_the_wait_and_is_told_to_the_operator(tmp_path, what):
    class Broken(Model):
        async def start(self):
            if what == "loaded":
                raise OSError(24, "Too many open files")

        async def transcribe(self, pcm, options):
            raise OSError(24, "Too many open files")

    notes = []
    speech = SpeechService(SpeechSettings(), tmp_path, {}, notes.append, stack=SpeechStack(transcriber=Broken([])))
    with pytest.raises(ApiError, match=f"could not be {what}. The operator finds the reason"):
        asyncio.run(speech.warm_up())
    assert speech.warm_up_state == "failed"
    assert [f"could not be {what}: OSError: [Errno 24] Too many open files." in note for note in notes] == [True]


def test_clients_learn_of_files_by_their_names_and_the_operator_where_they_are(tmp_path):
    fault, notes = ServerError(f"The model 'm' in {tmp_path}/m can't be loaded: Load model from {tmp_path}/m/a.onnx failed."), []
    speech = SpeechService(SpeechSettings(), tmp_path, {}, notes.append, stack=SpeechStack(transcriber=Model([], fault)))
    with pytest.raises(ApiError) as refused:
        asyncio.run(speech.load())
    assert refused.value.message == "The model 'm' in m can't be loaded: Load model from a.onnx failed."
    assert f"{tmp_path}/m/a.onnx" in notes[0]


def test_all_wait_for_the_same_loading_which_goes_on_if_one_leaves(tmp_path):
    class Slow(Model):
        async def start(self):
            self.ran.append("start")
            self.has_begun.set()
            await self.is_loaded.wait()

    async def scenario():
        voice = Slow([])
        voice.has_begun = asyncio.Event()
        speech = SpeechService(SpeechSettings(), tmp_path, {}, stack=SpeechStack(synthesizer=voice))
        async with asyncio.TaskGroup() as tasks:
            leaves, _stays = tasks.create_task(speech.load()), tasks.create_task(speech.load())
            await voice.has_begun.wait()
            assert speech.warm_up_state == "running"
            leaves.cancel()
            await asyncio.wait([leaves])
            voice.is_loaded.set()
        assert (voice.ran, speech.is_loaded, speech.warm_up_state) == (["start"], True, "done")

    asyncio.run(scenario())


def test_only_what_could_not_be_loaded_is_loaded_anew(tmp_path):
    class Counting(Model):
        async def start(self):
            self.ran.append("start")
            if self.fault is not None:
                fault, self.fault = self.fault, None
                raise fault

    async def scenario():
        voice, ear, notes = Counting([]), Counting([], ServerError("It is damaged.")), []
        stack = SpeechStack(synthesizer=voice, transcriber=ear)
        speech = SpeechService(SpeechSettings(), tmp_path, {}, notes.append, stack=stack)
        with pytest.raises(ApiError, match="It is damaged"):
            await speech.load()
        assert speech.warm_up_state == "failed" and len(notes) == 1 and "It is damaged" in notes[0]
        await speech.load()
        assert (voice.ran, ear.ran, speech.warm_up_state) == (["start"], ["start", "start"], "done")

    asyncio.run(scenario())
