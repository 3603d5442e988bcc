"""What the fast path takes of a read, and how often it is tried."""

import asyncio

import pytest

from antiphon.deadline import Deadline
from antiphon.engine_api.fast_path import TextSeries
from antiphon.engines.chat.relay_response import RelayStreamReader
from antiphon.engines.chat.response import ChatResponseReader
from antiphon.engines.upstream.fast_path import (
    MAX_READ_EVENTS,
    WORTHWHILE_EVENTS,
    FastPath,
    FastPathLearner,
    ReadAccount,
    TextTemplate,
    event_frame,
)

FRAME = (b"data: ", b"\n\n")
TEMPLATE = TextTemplate(b'{"choices":[{"delta":{"content":"', b'"}}]}', TextSeries("r"))
RELAYED = TextTemplate(TEMPLATE.before, TEMPLATE.behind, TextSeries("r", (b"a", b"b")))
IDLE_S = 60.0


def event(string):
    return b"data: %b%b%b\n\n" % (TEMPLATE.before, string, TEMPLATE.behind)


def read_of(*strings):
    return b"".join(b"%x\r\n%b\r\n" % (len(event(string)), event(string)) for string in strings)


def chunk_of(body):
    return b"%x\r\n%b\r\n" % (len(body), body)


class Sink:
    """Keeps what is written, unless it is closed."""

    def __init__(self):
        self.texts, self.strings, self.is_open = [], [], True

    def write(self, texts, strings):
        if self.is_open:
            self.texts += texts
            self.strings += strings
        return self.is_open


class Taking:
    """A fast path, its sink and its account."""

    def __init__(self, template=TEMPLATE, remaining_bytes=10**9, remaining_events=10**6):
        self.sink = Sink()
        self.account = ReadAccount(remaining_bytes, remaining_events, Deadline(lambda: None), IDLE_S)
        self.path = FastPath(FRAME, template, self.sink, self.account)


def in_loop(play):
    """Run what needs an event loop's clock."""

    async def scenario():
        return play()

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("string", "text", "written"),
    [
        (b"plain", "plain", b"plain"),
        (rb"line\n", "line\n", rb"line\n"),
        (rb"\"said\"", '"said"', rb"\"said\""),
        (rb"\u00e9", "\N{LATIN SMALL LETTER E WITH ACUTE}", "\N{LATIN SMALL LETTER E WITH ACUTE}".encode()),
        (rb"\ud83d\ude00", "\N{GRINNING FACE}", "\N{GRINNING FACE}".encode()),
        (rb"\/", "/", b"/"),
    ],
)
def test_a_string_is_written_as_our_encoder_writes_it_and_relayed_as_it_came(string, text, written):
    def play():
        for template, expected in ((TEMPLATE, written), (RELAYED, string)):
            taking = Taking(template)
            assert taking.path.take(read_of(string))
            assert (taking.sink.texts, taking.sink.strings) == ([text], [expected])

    in_loop(play)


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (read_of(b"a"), ["a"]),
        (read_of(b"a" * 1500), ["a" * 1500]),
        (read_of("\N{SNOWMAN}".encode()), ["\N{SNOWMAN}"]),
        (b"%X\r\n%b\r\n" % (len(event(b"fine")), event(b"fine")), ["fine"]),
        (read_of(b"a", b"b"), ["a", "b"]),
        (chunk_of(event(b"a") + event(b"b")), ["a", "b"]),
        (read_of(b"a", rb"\n"), ["a", "\n"]),
    ],
)
def test_all_the_text_of_a_read_is_taken(read, texts):
    def play():
        taking = Taking()
        assert taking.path.take(read)
        assert (taking.sink.texts, taking.path.event_count) == (texts, len(texts))
        assert taking.account.remaining_events == 10**6 - len(texts)
        assert taking.account.remaining_bytes == 10**9 - sum(len(event(text.replace("\n", "\\n").encode())) for text in texts)

    in_loop(play)


@pytest.mark.parametrize(
    "read",
    [
        read_of(b""),
        read_of(b"\xff"),
        read_of(b"\x01"),
        read_of(rb"\ud83d"),
        read_of(b'a"b'),
        read_of(b"fine") + b"0\r\n\r\n",
        read_of(b"fine")[:-1],
        read_of(b"fine")[1:],
        read_of(b"fine").replace(b"\r\n", b"\n"),
        b"0" + read_of(b"fine"),
        b"ff" + read_of(b"fine")[2:],
        b"5\r",
        b"\r\n",
        read_of(*[b"x"] * (MAX_READ_EVENTS + 1)),
        chunk_of(event(b"").replace(b'""', b'"')),  # what stands before the text ends in what stands behind it
        chunk_of(event(b"a") + event(b"")),
        chunk_of(event(b"a") + b": comment\n\n" + event(b"b")),
    ],
)
def test_what_is_not_text_in_whole_chunks_is_left_as_it_is(read):
    def play():
        taking = Taking()
        assert not taking.path.take(read)
        assert (taking.sink.texts, taking.account.remaining_events, taking.path.event_count) == ([], 10**6, 0)

    in_loop(play)


def test_the_limits_and_the_deadline_of_a_response_hold():
    def play():
        now = asyncio.get_running_loop().time()
        taking = Taking(remaining_bytes=len(event(b"ab")) + 5, remaining_events=2)
        assert taking.path.take(read_of(b"ab"))
        assert (taking.account.remaining_bytes, taking.account.remaining_events) == (5, 1)
        assert taking.account.deadline.due_at >= now + IDLE_S
        assert not taking.path.take(read_of(b"ab"))
        taking.account.remaining_bytes = 10**6
        assert not taking.path.take(read_of(b"a", b"b"))
        assert taking.path.take(read_of(b"c"))
        assert taking.account.remaining_events == 0
        assert not taking.path.take(read_of(b"d"))

    in_loop(play)


def test_what_a_closed_sink_does_not_take_is_not_counted():
    def play():
        taking = Taking()
        taking.sink.is_open = False
        assert not taking.path.take(read_of(b"a"))
        assert taking.account.remaining_events == 10**6
        taking.sink.is_open = True
        taking.path.close()
        assert not taking.path.take(read_of(b"a"))

    in_loop(play)


def tries(learner, reads):
    """At which reads it is tried."""
    return [number for number in range(reads) if learner.is_due()]


def test_it_is_tried_less_and_less_where_it_is_of_no_use():
    learner = FastPathLearner()
    assert tries(learner, 200) == [1, 4, 11, 26, 57, 120]


def test_one_that_was_of_use_is_learnt_anew_at_once():
    def play():
        learner = FastPathLearner()
        tries(learner, 100)
        for _ in range(5):
            path = learner.open(FRAME, TEMPLATE, Sink(), ReadAccount(10**9, 10**6, Deadline(lambda: None), IDLE_S))
            assert path.take(read_of(*[b"x"] * WORTHWHILE_EVENTS))
            assert learner.is_due()
            assert not path.take(read_of(b"x")), "the one before is closed"

    in_loop(play)


def test_a_frame_is_that_of_the_last_event_in_whole_chunks():
    last = b'{"a":1}'
    for pieces in ([b"data: " + last + b"\n\n"], [b"data: 1\n\n", b": x\ndata: " + last + b"\n\n"]):
        for form in (b"%x\r\n%b\r\n", b"%X\r\n%b\r\n"):
            read = b"".join(form % (len(piece), piece) for piece in pieces)
            assert event_frame(read, pieces, last) == (b"data: ", b"\n\n")
            assert event_frame(read[2:], pieces, last) is None
    strange = b"id: data: " + last + b"\n\n"
    assert event_frame(b"%x\r\n%b\r\n" % (len(strange), strange), [strange], last) is None


def test_only_what_is_nothing_but_text_has_a_template():
    reader = ChatResponseReader("r", {})
    before, behind = b'{"choices": [{"index": 0, "delta": {"role": "assistant", "content": "', b'"}}], "model": "content"}'
    assert reader.text_template(before + b"a" + behind) == TextTemplate(before, behind, TextSeries("r"))
    for other in (b'"logprobs": {"content": []}', b'"finish_reason": "stop"', b'"index": 1'):
        assert reader.text_template(b'{"choices": [{"delta": {"content": "a"}, %b}]}' % other) is None
    assert reader.text_template(b'{"choices": [{"delta": {"content": "a", "content": null}}]}') is None
    assert reader.text_template(b'{"choices": [{"delta": {"reasoning": "a"}}]}') is None
    assert reader.text_template(b'{"choices": [{"delta": {"content": "a"}}], "pad": "%b"}' % (b"x" * 5000)) is None


def test_a_relayed_event_keeps_all_but_the_name_of_its_model():
    reader = RelayStreamReader("r", "asked", is_chat=True, choices=1, wants_usage=True, count_mend=lambda _kind: None)
    first = b'{"model":"theirs","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'
    assert reader.text_template(first) is None, "its choice is not known yet"
    reader.read([first], [])
    template = reader.text_template(b'{"model":"theirs","choices":[{"index":0,"delta":{"content":"a"}}]}')
    assert template is not None
    assert template.series == TextSeries("r", (b'{"model":"asked","choices":[{"index":0,"delta":{"content":"', b'"}}]}'))
