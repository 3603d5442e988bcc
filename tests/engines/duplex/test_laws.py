"""What holds in full duplex whatever happens, and in whatever order."""

from hypothesis import given, strategies as st

from antiphon.engine_api import commands, events as engine_events
from support.engines.duplexes import Puppet, conversed, sound

HAPPENS = st.sampled_from(
    ("hear", "hear", "hear", "listen", "see", "start", "stop", "words", "sound", "sound", "end", "break", "pause", "resume")
)
ENDS = (engine_events.ResponseEnded, engine_events.ResponseFailed)


class Engine(Puppet):
    """An engine that answers what it was asked last, until that has ended."""

    def __init__(self):
        super().__init__(foresees=True, images=True)
        self.turns = 0
        self.turn = None
        self.over = set()

    def happen(self, what, duet):
        if what == "start" and self.turn is None:
            self.turns += 1
            self.turn = f"turn_{self.turns}"
            self.deliver([engine_events.SpeechStarted(self.turn, 0)])
        elif what == "stop" and self.turn is not None:
            turn, self.turn = self.turn, None
            self.deliver([engine_events.SpeechStopped(turn, 0)])
        elif what in ANSWERS and self.of(commands.Respond) and self.request.id not in self.over:
            if what in ("end", "break"):
                self.over.add(self.request.id)
            self.say(ANSWERS[what])
        elif what in TOLD:
            duet.send(TOLD[what])


ANSWERS = {
    "words": lambda id: engine_events.AudioTranscriptDelta(id, "Well "),
    "sound": lambda id: sound(id, 700),
    "end": lambda id: engine_events.ResponseEnded(id),
    "break": lambda id: engine_events.ResponseFailed(id=id, message="no"),
}
TOLD = {"listen": commands.ForceListen(), "see": commands.AppendImage(b"jpeg")}


def check(words):
    """One answer at a time, each with one end, and listening behind it."""
    open_id, over = None, []
    for word, following in zip(words, [*words[1:], None], strict=True):
        if isinstance(word, engine_events.Listening):
            assert not open_id, "it doesn't listen while it speaks"
            continue
        assert open_id in (None, word.id)
        assert word.id not in over
        open_id = word.id
        if isinstance(word, ENDS):
            over.append(word.id)
            open_id = None
            assert isinstance(following, engine_events.Listening)
    assert open_id is None


@given(st.lists(HAPPENS, max_size=60))
def test_answers_come_one_at_a_time_and_every_piece_of_sound_is_listened_to_or_spoken_over(events):
    pieces = []

    async def scenario(duet):
        is_paused = False
        for what in events:
            if what == "hear":
                before = len(duet.words)
                await duet.pieces(1, ms=200)
                pieces.append(duet.words[before:])
            elif what in ("pause", "resume"):
                if (what == "pause") != is_paused:
                    is_paused = what == "pause"
                    (duet.conversation.pause if is_paused else duet.conversation.resume)()
                await duet.settle()
            else:
                engine.happen(what, duet)
        if is_paused:
            duet.conversation.resume()
        for what in ("stop", "end"):
            engine.happen(what, duet)
        await duet.pieces(60)

    engine = Engine()
    duet = conversed(engine, scenario, commands.StartDuplex(has_video=True))
    check(duet.last)
    assert all(sum(isinstance(word, engine_events.Listening) for word in words) <= 1 for words in pieces)
    assert engine.paused == 0
    asked = [ask.id for ask in engine.of(commands.Respond)]
    assert len(set(asked)) == len(asked)
