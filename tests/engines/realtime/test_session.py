"""The messages of one connection to a Realtime server, without a connection: the test sets the clock, so nothing waits."""

from math import inf

from hypothesis import given, strategies as st

from antiphon.engine_api import commands, events as engine_events, history
from antiphon.engine_api.options import Transcription, TurnDetection
from antiphon.engines.realtime.faults import to_api_error
from antiphon.engines.realtime.session import CANCEL_TIMEOUT_S, AudioLog, RealtimeUpstreamSession, ResponseTimeouts
from antiphon.errors import UpstreamError
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.client_events import ConversationItemCreate, InputAudioBufferCommit, ResponseCancel, ResponseCreate
from antiphon.wire.realtime.items import FunctionCallItem, MessageItem
from antiphon.wire.realtime.response import Response

LOST = UpstreamError("The model server closed the connection.", code="upstream_broke_off")


class Line:
    """A channel, what it sent, and what it said."""

    def __init__(self, configure=None):
        self.sent, self.said = [], []
        intake = AudioLog()
        if configure is not None:
            intake.set_configuration(configure)
        numbers = iter(range(1000))
        self.channel = RealtimeUpstreamSession(
            self.sent.append, intake, lambda: f"heard_{next(numbers)}", "ab", ResponseTimeouts(300, 60), to_api_error, "ga"
        )

    def tell(self, word, now=0.0):
        self.said += self.channel.handle_command(word, now)

    def hear(self, event, now=0.0):
        self.said += self.channel.handle_event(event, now)

    def sent_of(self, kind):
        return [event for event in self.sent if isinstance(event, kind)]

    def ends(self, id):
        return [
            word for word in self.said if word.id == id and isinstance(word, engine_events.ResponseEnded | engine_events.ResponseFailed)
        ]


def ask(id, **more):
    return commands.Respond(id=id, history=(history.Message("user", (history.TextPart("Hi"),)),), **more)


def created(id, metadata=None):
    return events.ResponseCreated(event_id="e", response=Response(id=id, status="in_progress", metadata=metadata))


def done(id, status="completed"):
    return events.ResponseDone(event_id="e", response=Response(id=id, status=status))


def delta(id, text, item_id="item_a"):
    return events.ResponseOutputTextDelta(event_id="e", response_id=id, item_id=item_id, output_index=0, content_index=0, delta=text)


def error(code=None, event_id=None, type="invalid_request_error"):
    return events.ErrorEvent(event_id="e", error=events.RealtimeError(type=type, code=code, message="No.", event_id=event_id))


def test_an_upstream_that_never_ends_a_cancelled_answer_is_not_waited_for():
    line = Line()
    line.tell(ask("resp_1"))
    line.hear(created("r1"), 1.0)
    line.tell(commands.Cancel("resp_1"), 2.0)
    line.tell(ask("resp_2"), 3.0)
    assert len(line.sent_of(ResponseCreate)) == 1, "it is not its turn yet"
    assert line.channel.next_deadline() == 2.0 + CANCEL_TIMEOUT_S
    line.said += line.channel.check_timeouts(2.0 + CANCEL_TIMEOUT_S)
    assert line.ends("resp_1") == [engine_events.ResponseEnded("resp_1", "cancelled")]
    assert len(line.sent_of(ResponseCreate)) == 2
    line.hear(done("r1", "cancelled"), 9.0)
    assert len(line.ends("resp_1")) == 1


def test_time_counts_from_the_last_that_came():
    line = Line()
    line.tell(ask("resp_1"), 0.0)
    assert line.channel.next_deadline() == 300
    line.hear(created("r1"), 10.0)
    line.hear(delta("r1", "a"), 20.0)
    assert line.channel.next_deadline() == 80
    assert not line.channel.check_timeouts(79)
    line.said += line.channel.check_timeouts(80)
    assert line.ends("resp_1")[0].status == 504
    assert len(line.sent_of(ResponseCancel)) == 1
    line.hear(done("r1", "cancelled"), 81.0)
    assert line.channel.next_deadline() == inf
    assert len(line.ends("resp_1")) == 1


def test_a_cancelled_answer_aside_is_called_off_once_it_has_a_name():
    line = Line()
    line.tell(ask("resp_1", out_of_band=True))
    line.tell(commands.Cancel("resp_1"))
    assert not line.sent_of(ResponseCancel), "without a name it would call off what is answered in the conversation"
    (create,) = line.sent_of(ResponseCreate)
    line.hear(created("r1", dict(create.response.metadata)))
    assert [event.response_id for event in line.sent_of(ResponseCancel)] == ["r1"]


def test_an_error_is_told_to_whom_it_is_about():
    line = Line(commands.Configure(transcription=Transcription()))
    line.tell(commands.CommitAudio("turn_1"))
    line.tell(ask("resp_1"))
    line.hear(error("response_cancel_not_active"))
    assert not line.said
    line.hear(error("input_audio_buffer_commit_empty", line.sent_of(InputAudioBufferCommit)[0].event_id))
    assert [type(word) for word in line.said] == [engine_events.InputTranscriptFailed]
    line.hear(error("invalid_value", line.sent_of(ConversationItemCreate)[0].event_id))
    assert line.ends("resp_1")[0].code == "invalid_value"
    line.tell(ask("resp_2"))
    line.hear(done("none", "cancelled"))
    line.hear(error("weird", type="server_error"))
    assert isinstance(line.said[-1], engine_events.EngineError | engine_events.ResponseFailed)


def test_an_error_that_does_not_say_what_it_is_about_is_about_what_is_waited_for():
    line = Line()
    line.tell(ask("resp_1"))
    line.hear(error("invalid_value"))
    assert line.ends("resp_1")[0].status == 400
    line.hear(error("invalid_value"))
    assert isinstance(line.said[-1], engine_events.EngineError)


def test_words_that_come_only_whole_are_said_and_those_said_already_are_not():
    line = Line()
    line.tell(ask("resp_1"))
    line.hear(created("r1"))
    line.hear(delta("r1", "Good "))
    places = {"event_id": "e", "response_id": "r1", "item_id": "item_a", "output_index": 0, "content_index": 0}
    line.hear(events.ResponseOutputTextDone(text="Good day.", **places))
    line.hear(events.ResponseOutputTextDone(text="Good day.", **places))
    assert [word.text for word in line.said] == ["Good ", "day."]


def test_a_call_that_comes_only_whole_is_told_in_full():
    line = Line()
    line.tell(ask("resp_1"))
    line.hear(created("r1"))
    item = FunctionCallItem(id="item_c", name="look", call_id="call_1", arguments="{}", status="completed")
    line.hear(events.ResponseOutputItemDone(event_id="e", response_id="r1", output_index=0, item=item))
    line.hear(done("r1"))
    told = [
        engine_events.ToolCallStarted("resp_1", "call_1", "look"),
        engine_events.ToolArgumentsDelta("resp_1", "call_1", "{}"),
        engine_events.ToolCallDone("resp_1", "call_1"),
    ]
    assert line.said == [*told, engine_events.ResponseEnded("resp_1")]


def test_two_messages_of_an_answer_are_two_items():
    line = Line()
    line.tell(ask("resp_1"))
    line.hear(created("r1"))
    for number in (1, 2):
        item = MessageItem(id=f"item_{number}", role="assistant", content=[])
        line.hear(events.ResponseOutputItemAdded(event_id="e", response_id="r1", output_index=number, item=item))
        line.hear(delta("r1", str(number), f"item_{number}"))
    assert line.said == [
        engine_events.TextDelta("resp_1", "1"),
        engine_events.ItemBoundary("resp_1"),
        engine_events.TextDelta("resp_1", "2"),
    ]


IDS = st.sampled_from(["r1", "r2", "r3"])
ITEMS = st.sampled_from(["item_a", "item_b", "item_c"])
EVENTS = st.one_of(
    IDS.map(created),
    st.builds(done, IDS, st.sampled_from(["completed", "failed", "cancelled", "incomplete"])),
    st.builds(delta, IDS, st.sampled_from(["x", ""]), ITEMS),
    st.builds(error, st.sampled_from([None, "invalid_value", "response_cancel_not_active"]), st.sampled_from([None, "event_1", "event_3"])),
    ITEMS.map(lambda item_id: events.InputAudioBufferSpeechStarted(event_id="e", audio_start_ms=10, item_id=item_id)),
    ITEMS.map(lambda item_id: events.InputAudioBufferSpeechStopped(event_id="e", audio_end_ms=90, item_id=item_id)),
    ITEMS.map(lambda item_id: events.InputAudioBufferCommitted(event_id="e", item_id=item_id)),
    ITEMS.map(lambda item_id: events.ConversationItemDeleted(event_id="e", item_id=item_id)),
    ITEMS.map(lambda item_id: events.InputAudioTranscriptionDelta(event_id="e", item_id=item_id, delta="so")),
)
WORDS = st.one_of(
    st.sampled_from([f"resp_{number}" for number in range(4)]).map(commands.Cancel),
    st.just(commands.AppendAudio(bytes(960))),
    st.just(commands.ClearAudio()),
    st.sampled_from([commands.Configure(), commands.Configure(turn_detection=TurnDetection(), transcription=Transcription())]),
)
ASKS = st.tuples(st.just("ask"), st.booleans())
COMMITS = st.just(("commit", None))


@given(st.lists(st.one_of(EVENTS, WORDS, ASKS, COMMITS), max_size=40))
def test_whatever_comes_every_answer_ends_once_and_every_turn_that_starts_stops_or_was_dropped(steps):
    line = Line(commands.Configure(turn_detection=TurnDetection(), transcription=Transcription()))
    asked, dropped, count = [], set(), 0
    for now, step in enumerate(steps):
        match step:
            case ("ask", aside):
                asked.append(f"resp_{len(asked)}")
                line.tell(ask(asked[-1], out_of_band=aside), now)
            case ("commit", None):
                count += 1
                dropped |= opened(line)
                line.tell(commands.CommitAudio(next(iter(opened(line)), f"turn_{count}")), now)
            case events.Event():
                line.hear(step, now)
            case _:
                if isinstance(step, commands.ClearAudio | commands.Configure):
                    dropped |= opened(line)
                line.tell(step, now)
        line.said += line.channel.check_timeouts(now)
    line.said += line.channel.close(LOST)
    assert [len(line.ends(id)) for id in asked] == [1] * len(asked)
    for id in asked:
        said = [word for word in line.said if word.id == id]
        assert said[-1] is line.ends(id)[0], "the end comes last"
    assert opened(line) <= dropped
    over = [word.id for word in line.said if isinstance(word, engine_events.InputTranscriptDone | engine_events.InputTranscriptFailed)]
    assert len(over) == len(set(over))


def opened(line):
    """The turns that started and have not stopped."""
    started = {word.id for word in line.said if isinstance(word, engine_events.SpeechStarted)}
    return started - {word.id for word in line.said if isinstance(word, engine_events.SpeechStopped)}
