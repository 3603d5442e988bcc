"""A turn-based engine in full duplex: listening, speaking and interruptions."""

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import TurnDetection, Voice
from antiphon.engines.duplex.conversation import LEAD_MARGIN_MS
from antiphon.engines.duplex.options import can_adapt
from support.engines.duplexes import RATE_HZ, TURN_END, Puppet, conversed, piece, silent_parrot, sound
from support.engines.hearings import noise, quiet

ENDED = events.ResponseEnded("duplex_1")
CUT = events.ResponseEnded("duplex_1", "cancelled")
LISTENING = events.Listening()


def spoken(text):
    return lambda id: events.AudioTranscriptDelta(id, text)


def sounding(ms):
    return lambda id: sound(id, ms)


def ended(id):
    return events.ResponseEnded(id)


def ended_cut(id):
    return events.ResponseEnded(id, "cancelled")


def text(words):
    return lambda id: events.TextDelta(id, words)


def test_it_is_ready_and_listens_to_every_piece_of_sound():
    async def scenario(duet):
        await duet.pieces(3)

    puppet = Puppet()
    duet = conversed(puppet, scenario)
    assert duet.ready == [events.DuplexStarted()]
    assert duet.last == [LISTENING] * 3
    configure, *heard = puppet.told
    assert configure == commands.Configure(rate_hz=RATE_HZ, turn_detection=TurnDetection())
    assert heard == [piece()] * 3


def test_pieces_that_come_together_are_each_listened_to():
    async def scenario(duet):
        duet.send(piece(), piece(20), piece())

    assert conversed(Puppet(), scenario).last == [LISTENING] * 3


def test_a_turn_is_answered_and_the_end_of_the_answer_is_told_when_it_was_heard():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn(start_ms=0, end_ms=800)
        puppet.say(spoken("Hello"), sounding(1200))
        puppet.say(ended)
        assert duet.take() == [LISTENING, events.AudioTranscriptDelta("duplex_1", "Hello"), sound("duplex_1", 1200)]
        await duet.pieces(1)
        assert duet.take() == []
        await duet.pieces(2)
        assert duet.take() == [ENDED, LISTENING, LISTENING]

    puppet = Puppet()
    conversed(puppet, scenario)
    (part,) = puppet.request.history[0].parts
    assert puppet.request == commands.Respond(
        id="duplex_1",
        history=(history.Message("user", (part,)),),
        instructions="Be brief.",
        truncate=True,
        voice=Voice(),
    )
    assert part == history.SpeechPart(TURN_END[: 2 * RATE_HZ * 8 // 10], RATE_HZ, "turn_1")


def test_an_answer_in_writing_is_over_at_once():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(text("Hello"), ended)

    puppet = Puppet()
    words = conversed(puppet, scenario, commands.StartDuplex(voice=None)).last
    assert words == [LISTENING, events.TextDelta("duplex_1", "Hello"), ENDED, LISTENING]
    assert puppet.request.voice is None


def test_the_model_is_told_all_that_was_said_and_answered():
    async def scenario(duet):
        for number in (1, 2):
            await duet.hear(TURN_END)
            puppet.turn(f"turn_{number}", 1000 * (number - 1), 1000 * number)
            puppet.say(spoken(f"Answer {number}"), sounding(100), ended)
            await duet.pieces(1)

    puppet = Puppet()
    conversed(puppet, scenario)
    user, answer, _ = puppet.request.history
    assert user.parts[0].turn_id == "turn_1"
    assert answer == history.Message("assistant", (history.TextPart("Answer 1"),))
    assert [ask.id for ask in puppet.of(commands.Respond)] == ["duplex_1", "duplex_2"]


def test_whoever_speaks_cuts_the_answer_short_and_the_model_remembers_what_was_heard():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(spoken("One "), sounding(1000), spoken("two "), sounding(1000), spoken("three"), sounding(4000), ended)
        await duet.pieces(1)
        duet.take()
        puppet.deliver([events.SpeechStarted("turn_2", 1500)])
        assert duet.take() == [CUT, LISTENING]
        assert puppet.of(commands.Cancel) == [commands.Cancel("duplex_1")]
        puppet.say(spoken("late"), sounding(100), ended_cut)
        assert duet.take() == []
        puppet.deliver([events.SpeechStopped("turn_2", 2000)])

    puppet = Puppet()
    conversed(puppet, scenario)
    assert puppet.request.history[1] == history.Message("assistant", (history.TextPart("One "),), played_ms=1000)


def test_an_answer_of_which_nothing_was_heard_is_not_remembered():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(spoken("One"), sounding(1000))
        puppet.turn("turn_2", 1000, 1100)

    puppet = Puppet()
    conversed(puppet, scenario)
    assert [turn.role for turn in puppet.request.history] == ["user", "user"]


def test_whoever_goes_on_speaking_before_the_answer_is_made_is_answered_once():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.turn("turn_2", 1000, 1100)
        puppet.say(text("Yes"), ended)

    puppet = Puppet()
    words = conversed(puppet, scenario).last
    assert words == [LISTENING, events.TextDelta("duplex_2", "Yes"), events.ResponseEnded("duplex_2"), LISTENING]
    assert puppet.of(commands.Cancel) == [commands.Cancel("duplex_1")]


def test_while_the_answer_is_being_made_it_still_listens():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        await duet.pieces(2)
        puppet.say(text("Yes"))
        await duet.pieces(2)

    puppet = Puppet()
    assert conversed(puppet, scenario).last == [LISTENING] * 3 + [events.TextDelta("duplex_1", "Yes")]


def test_a_turn_that_is_answered_with_nothing_goes_by_in_silence():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(ended)
        await duet.pieces(1)

    puppet = Puppet()
    assert conversed(puppet, scenario).last == [LISTENING] * 2


# Being told to listen


def test_told_to_listen_it_falls_silent_and_what_is_made_is_dropped():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(spoken("One"), sounding(1000))
        duet.take()
        duet.send(commands.ForceListen(), piece())
        puppet.say(sounding(100))
        await duet.settle()
        assert duet.take() == [CUT, LISTENING]
        await duet.pieces(1)
        assert duet.take() == [LISTENING]

    puppet = Puppet()
    conversed(puppet, scenario)
    assert puppet.of(commands.Cancel) == [commands.Cancel("duplex_1")]


def test_nothing_is_begun_while_it_is_told_to_listen_and_the_turn_is_answered_after():
    async def scenario(duet):
        for _ in range(2):
            duet.send(commands.ForceListen())
            await duet.hear(TURN_END)
        puppet.turn()
        assert not puppet.of(commands.Respond)
        await duet.pieces(1)
        puppet.say(text("Yes"))

    puppet = Puppet()
    assert conversed(puppet, scenario).last == [LISTENING] * 3 + [events.TextDelta("duplex_1", "Yes")]


def test_the_first_pieces_are_only_listened_to_where_the_client_wants_that():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        await duet.pieces(1)
        assert not puppet.of(commands.Respond)
        await duet.pieces(1)
        assert puppet.request.history[-1].parts[0].turn_id == "turn_1"

    puppet = Puppet()
    conversed(puppet, scenario, commands.StartDuplex(options={"force_listen_count": 2}))


# What is foreseen


def test_an_engine_that_foresees_is_told_what_it_will_be_asked_and_then_asked_just_that():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()

    puppet = Puppet(foresees=True)
    conversed(puppet, scenario)
    (foreseen,) = puppet.of(commands.Prepare)
    (part,) = puppet.request.history[0].parts
    assert foreseen.request.history == (history.Message("user", (history.SpeechPart(b"", RATE_HZ, "turn_1"),)),)
    assert foreseen.request == commands.Respond(
        **{name: getattr(puppet.request, name) for name in ("id", "instructions", "truncate", "voice")}, history=foreseen.request.history
    )
    assert part.pcm


# What goes wrong


def test_an_answer_that_breaks_is_told_and_the_next_is_given():
    async def scenario(duet):
        for number in (1, 2):
            await duet.hear(TURN_END)
            puppet.turn(f"turn_{number}", 1000 * (number - 1), 1000 * number)
            puppet.say(text("Yes"), (lambda id: events.ResponseFailed(id=id, message="no")) if number == 1 else ended)

    puppet = Puppet()
    words = conversed(puppet, scenario).last
    assert words[:4] == [LISTENING, events.TextDelta("duplex_1", "Yes"), events.ResponseFailed(id="duplex_1", message="no"), LISTENING]
    assert words[-2:] == [events.ResponseEnded("duplex_2"), LISTENING]


def test_an_engine_that_has_no_room_breaks_the_answer():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()

    puppet = Puppet()
    puppet.overrun = EngineOverrun("64 answers are under way already")
    _, broke, listening = conversed(puppet, scenario).last
    assert (broke.id, broke.status, listening) == ("duplex_1", 503, LISTENING)


def test_an_engine_may_answer_while_it_is_asked():
    class Prompt(Puppet):
        def send(self, word):
            super().send(word)
            if isinstance(word, commands.Respond):
                self.say(text("Yes"), ended)

    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()

    puppet = Prompt()
    assert conversed(puppet, scenario).last == [LISTENING, events.TextDelta("duplex_1", "Yes"), ENDED, LISTENING]


def test_an_engine_that_is_lost_is_told_as_it_is():
    async def scenario(_):
        puppet.deliver([events.EngineLost(code="backend_error", message="It died.")])

    puppet = Puppet()
    assert conversed(puppet, scenario).last == [events.EngineLost(code="backend_error", message="It died.")]


def test_an_answer_that_goes_on_for_minutes_is_ended():
    # So loud that it is soon known to come back from nowhere: to look for its echo takes most of the time.
    loud = (b"\0\x20" * 30 + b"\0\xe0" * 30) * 4_000

    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        for _ in range(31):
            puppet.say(lambda id: events.AudioDelta(id, loud))
        for _ in range(310):
            await duet.pieces(1)

    puppet = Puppet()
    duet = conversed(puppet, scenario)
    assert duet.sound_ms() == 300_000
    assert [word for word in duet.last if isinstance(word, events.ResponseEnded)] == [events.ResponseEnded("duplex_1", "length")]
    assert puppet.of(commands.Cancel)


def test_nothing_is_said_after_the_conversation_is_left():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        duet.send(piece())

    puppet = Puppet()
    duet = conversed(puppet, scenario)
    duet.take()
    puppet.say(text("Yes"), ended)
    assert duet.take() == []


# Time without sound


def test_an_answer_goes_on_by_the_clock_where_the_microphone_was_switched_off():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(spoken("One"), sounding(5000), ended)
        await duet.skip(1.3)
        assert duet.sound_ms() == 1500
        await duet.skip(0.2)
        assert duet.sound_ms() == 3000, "before a player runs dry"
        await duet.skip(1)
        assert 4000 <= duet.sound_ms() < 4500
        await duet.hear(quiet(1000, RATE_HZ))
        assert duet.sound_ms() == 4000, "what the clock has counted is not counted again"
        await duet.pieces(1)
        assert round(duet.sound_ms()) == 5000
        await duet.skip(2)
        await duet.skip(1)
        assert duet.words[-2:] == [ENDED, LISTENING]

    puppet = Puppet()
    conversed(puppet, scenario)


def test_sound_that_the_network_held_back_is_not_counted_beside_the_clock():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(spoken("One"), sounding(20_000), ended)
        for _ in range(25):
            await duet.skip(0.1)
        assert round(duet.sound_ms()) == 4000
        await duet.skip(0.05)
        duet.send(*[piece(1000)] * 3)
        await duet.settle()
        assert round(duet.sound_ms()) == 4050

    puppet = Puppet()
    conversed(puppet, scenario)


def test_an_answer_that_is_made_late_is_not_hurried_by_the_clock():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        await duet.skip(1.9)
        puppet.say(spoken("One"), sounding(5000), ended)
        await duet.skip(0.2)
        assert 1500 < duet.sound_ms() < 2000

    puppet = Puppet()
    conversed(puppet, scenario)


def test_a_client_that_is_behind_is_told_nothing_until_it_has_caught_up():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        duet.conversation.pause()
        assert puppet.paused == 1
        puppet.say(text("Yes"), ended)
        assert duet.take() == [LISTENING]
        duet.conversation.resume()
        await duet.settle()
        assert duet.take() == [events.TextDelta("duplex_1", "Yes"), ENDED, LISTENING]

    puppet = Puppet()
    conversed(puppet, scenario)


# What is asked for, and what becomes of it


def test_it_is_told_honestly_what_is_not_done():
    async def scenario(_):
        pass

    asked = commands.StartDuplex(
        has_video=True, voice=Voice(reference=b"\1\0"), options={"length_penalty": 1.1, "top_p": 0.5, "temperature": "hot"}
    )
    assert conversed(Puppet(), scenario, asked).ready == [
        events.DuplexStarted({"video": "not seen", "voice_reference": "not used", "ignored": ["length_penalty", "temperature"]})
    ]
    assert conversed(Puppet(audio_out=False), scenario).ready == [events.DuplexStarted({"audio": "not made"})]
    assert conversed(Puppet(images=True, clones=True), scenario, asked).ready[0].metrics["video"] == "seen"
    assert conversed(Puppet(images=True, clones=True), scenario, asked).ready[0].metrics["voice_reference"] == "used"


def test_the_voice_is_the_engines_own_where_it_has_none_of_that_name():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()

    puppet = Puppet(voices=("low",))
    conversed(puppet, scenario, commands.StartDuplex(voice=Voice(name="Cleo", reference=b"\1\0")))
    assert puppet.request.voice == Voice()


def test_everything_else_goes_to_the_engine_as_it_is():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        aside = commands.Respond(id="resp_1", history=(history.Message("user", (history.TextPart("Hi"),)),))
        duet.send(aside, commands.ClearAudio(), commands.StartDuplex())
        assert puppet.told[-1] == aside
        puppet.deliver([events.TextDelta("resp_1", "Ho"), events.ResponseEnded("resp_1")])
        duet.send(commands.Cancel("resp_1"))
        assert puppet.told[-1] == commands.Cancel("resp_1")
        assert duet.take() == [LISTENING, events.TextDelta("resp_1", "Ho"), events.ResponseEnded("resp_1")]

    puppet = Puppet()
    conversed(puppet, scenario)


def test_engines_that_listen_and_find_turns_can_have_full_duplex_and_those_that_have_it_need_not():
    assert can_adapt(Puppet().capabilities)
    assert not can_adapt(Puppet(turn_detection=()).capabilities)
    assert not can_adapt(Puppet(listens=False).capabilities)
    assert not can_adapt(Puppet(full_duplex=True).capabilities)


def test_an_engine_that_judges_whether_a_turn_is_complete_is_let_judge():
    async def scenario(_):
        pass

    puppet = Puppet(turn_detection=("server_vad", "semantic_vad"))
    conversed(puppet, scenario)
    assert puppet.told[0].turn_detection == TurnDetection("semantic_vad")


# With a real engine of turns


def test_a_dialogue_with_an_engine_that_hears_by_itself():
    async def scenario(duet):
        await duet.hear(noise(600, rate_hz=RATE_HZ) + quiet(400, RATE_HZ), quiet(1000, RATE_HZ))
        await duet.until(lambda: duet.sound_ms() > 0)
        await duet.settle()
        assert duet.kinds()[:2] == ["Listening", "Listening"]
        assert "".join(word.text for word in duet.take() if isinstance(word, events.AudioTranscriptDelta)) == "You said hello there"
        await duet.hear(noise(600, rate_hz=RATE_HZ))
        assert duet.take() == [CUT, LISTENING]

    conversed(silent_parrot(answers=[{"say": "You said {input}"}], hears=[{"says": "hello there"}]), scenario)


def test_the_sound_that_is_on_its_way_is_never_more_than_the_lead():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(sounding(20_000))
        assert duet.sound_ms() == 1500, "the lead is half a second more than a piece of sound"
        await duet.pieces(2)
        assert duet.sound_ms() == 3500
        await duet.pieces(90, ms=100)
        assert duet.sound_ms() == 3000 + 9000 - 400, "it is less for shorter pieces"

    puppet = Puppet()
    conversed(puppet, scenario)


def test_pieces_of_any_length_never_let_the_player_run_dry():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(sounding(20_000))
        for ms in (20, 480, 7, 33, 1000, 95, 13, 61, 210, 1000, 33):
            await duet.skip(ms / 1000)
            played_ms.append(played_ms[-1] + ms)
            assert duet.sound_ms() > played_ms[-1] + LEAD_MARGIN_MS / 2
            await duet.hear(quiet(ms, RATE_HZ))

    played_ms = [0]
    puppet = Puppet()
    conversed(puppet, scenario)


def test_of_the_piece_in_which_an_answer_begins_only_what_came_after_counts_as_heard():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        await duet.skip(0.8)
        puppet.say(spoken("One "), sounding(150), spoken("two "), sounding(150), spoken("three "), sounding(4000))
        await duet.skip(0.2)
        await duet.hear(quiet(1000, RATE_HZ))
        assert duet.sound_ms() == 200 + 1500
        puppet.turn("turn_2", 1900, 2000)

    puppet = Puppet()
    conversed(puppet, scenario)
    assert puppet.request.history[1] == history.Message("assistant", (history.TextPart("One two "),), played_ms=200)


def test_pieces_that_come_late_and_together_count_as_long_as_it_took():
    async def scenario(duet):
        await duet.hear(quiet(100, RATE_HZ), TURN_END)
        puppet.turn()
        await duet.skip(0.2)
        puppet.say(sounding(20_000))
        await duet.skip(0.3)
        duet.send(*[piece(100)] * 5)
        await duet.settle()
        assert duet.sound_ms() == 300 + 1450

    puppet = Puppet()
    conversed(puppet, scenario)


def test_the_end_of_an_answer_is_told_when_a_slow_player_has_played_it_too():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(spoken("Hello"), sounding(1000), ended)
        duet.take()
        await duet.pieces(12, ms=100)
        assert duet.take() == []
        await duet.pieces(1, ms=100)
        assert duet.take() == [ENDED, LISTENING]

    conversed(puppet := Puppet(), scenario)


def test_who_speaks_at_the_very_end_has_heard_all_of_it():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(spoken("Hello "), sounding(500), spoken("you."), ended)
        await duet.pieces(6, ms=100)
        puppet.turn("turn_2", 1500, 1600)

    puppet = Puppet()
    assert CUT in conversed(puppet, scenario).last
    assert puppet.request.history[1] == history.Message("assistant", (history.TextPart("Hello you."),))


def test_what_a_whole_answer_has_cost_is_told_though_it_is_cut_short():
    async def scenario(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.say(spoken("Hello"), sounding(5000), lambda id: events.Usage(id=id, input_tokens=3, output_tokens=2), ended)
        duet.take()
        puppet.deliver([events.SpeechStarted("turn_2", 1500)])
        assert duet.take() == [events.Usage(id="duplex_1", input_tokens=3, output_tokens=2), CUT, LISTENING]

    puppet = Puppet()
    conversed(puppet, scenario)


def test_the_words_of_a_turn_come_with_its_place_in_the_input():
    puppet = Puppet()

    async def scenario(duet):
        await duet.pieces(2)
        puppet.turn("turn_1", 300, 1500)
        puppet.deliver([events.InputTranscriptDelta("turn_1", "Hi"), events.InputTranscriptDone(id="turn_1", transcript="Hi")])
        puppet.deliver([events.InputTranscriptDone(id="turn_0", transcript="of no turn")])
        await duet.settle()

    duet = conversed(puppet, scenario)
    heard = [word for word in duet.last if isinstance(word, events.InputTranscriptDelta | events.InputTranscriptDone)]
    assert heard == [events.InputTranscriptDone(id="turn_1", transcript="Hi", start_ms=300, end_ms=1500)]
