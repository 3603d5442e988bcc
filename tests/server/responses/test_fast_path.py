"""
The law of the fast path: a stream of tokens is the same with it and without it, to the byte, whatever its upstream sends,
however that is cut, and whatever its client does meanwhile.
"""

import json

import pytest
from hypothesis import given, settings, strategies as st

from support.server.token_streams import PROTOCOLS, play


def chunk(data, form=b"%x\r\n%b\r\n"):
    return form % (len(data), data)


def choice(delta, finish=None, **more):
    return {"index": 0, "delta": delta, "finish_reason": finish, **more}


def event(*choices, end=b"\n\n", **more):
    return b"data: " + json.dumps({"id": "c", "created": 1, "model": "x", "choices": choices, **more}).encode() + end


def text(content, **more):
    return event(choice({"content": content}), **more)


DONE = [event(choice({}, "stop")), event(usage={"prompt_tokens": 1, "completion_tokens": 2}), b"data: [DONE]\n\n"]
ROLE = event(choice({"role": "assistant", "content": ""}))
CALL = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}


def streamed(*events):
    """Each event in a read of its own, and the end in one."""
    steps = [step for each in events for step in (chunk(each), "turn")]
    return [chunk(ROLE), "turn", *steps, b"".join(map(chunk, DONE)) + b"0\r\n\r\n"]


def alike(steps, **how):
    """The stream by the fast path, which is as without it."""
    fast, ordinary = play(steps, fast=True, **how), play(steps, fast=False, **how)
    for name, seen in ordinary.seen.items():
        assert fast.seen[name] == seen, name
    assert fast.delivered <= ordinary.delivered
    return fast


# What the fast path takes

TOKENS = [
    text(token)
    for token in (" one", " \N{WHITE SMILING FACE}", "line\n", 'say "so"', "\\", "\t\x07", "\N{NO-BREAK SPACE}", "x" * 40, "end")
]


@pytest.mark.parametrize("is_balanced", [False, True])
@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "eugpt"])
def test_text_takes_the_fast_path(protocol, is_balanced):
    steps = streamed(*TOKENS * 20)
    assert alike(steps, protocol=protocol, is_balanced=is_balanced, is_stored=True).delivered < 20


def test_a_profile_that_numbers_events_itself_gets_each_event():
    assert alike(streamed(*TOKENS * 3), protocol="eugpt").delivered > len(TOKENS) * 3


@pytest.mark.parametrize(
    "framed",
    [
        lambda events: [b"".join(map(chunk, events))],
        lambda events: [chunk(b"".join(events))],
        lambda events: [chunk(each, b"%X\r\n%b\r\n") for each in events],
        lambda events: [chunk(each.replace(b"\n\n", b"\r\n\r\n")) for each in events],
    ],
    ids=["chunks in a read", "events in a chunk", "upper case", "carriage returns"],
)
def test_several_events_may_come_together(framed):
    reads = [step for _ in range(20) for read in framed(TOKENS) for step in (read, "turn")]
    steps = [*streamed(*TOKENS[:2])[:-1], *reads, *map(chunk, DONE), b"0\r\n\r\n"]
    assert alike(steps).delivered < 4 * len(TOKENS)


def test_a_template_that_goes_stale_is_learnt_anew():
    ticking = [text(f" {number}", created=number // 20) for number in range(200)]
    assert alike(streamed(*ticking)).delivered < 50


@pytest.mark.parametrize("protocol", ["openai", "relay"])
def test_an_upstream_whose_events_are_never_alike_gets_few_tries(protocol):
    padded = [text(f" {number}", obfuscation="x" * (number % 7), created=number) for number in range(100)]
    assert alike(streamed(*padded), protocol=protocol).delivered >= 100


@pytest.mark.parametrize("is_balanced", [False, True])
def test_a_client_that_is_behind_takes_the_ordinary_way_which_drops_it(is_balanced):
    steps = [*streamed(*TOKENS)[:-1], "fall_behind", chunk(text("late")), "turn"]
    assert "backlog" in alike(steps, is_balanced=is_balanced).seen["writes"]


def test_what_looks_like_a_chunk_within_a_chunk_is_none():
    inner = chunk(text(" decoy"))
    outer = [b"%x\r\n" % len(inner), "turn", inner, "turn", b"\r\n", "turn"]
    alike([*streamed(*TOKENS)[:-1], *outer, *streamed(*TOKENS)[2:]])


@pytest.mark.parametrize("end", ["leave", "stop", "cut"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_written_behind_the_end(protocol, end):
    for after in ([], ["turn"]):
        alike([*streamed(*TOKENS * 2)[:-1], end, *after, chunk(text("late")), "turn"], protocol=protocol)


@pytest.mark.parametrize("limit", [{"max_response_events": 12}, {"max_response_bytes": 1500}])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_response_that_gets_too_long_ends_at_the_same_event(protocol, limit):
    alike(streamed(*TOKENS * 3), protocol=protocol, options=limit)
    alike(
        [*streamed(*TOKENS)[:-1], b"".join(map(chunk, TOKENS)), "turn", b"".join(map(chunk, TOKENS)), "turn"],
        protocol=protocol,
        options=limit,
    )


def test_silence_counts_from_the_last_token_and_heartbeats_too():
    tokens = [step for token in TOKENS * 2 for step in (chunk(token), "turn", "wait")]
    alike([*streamed(*TOKENS)[:-1], *tokens, "wait", "wait"], options={"timeout_idle_s": 40})


# The law

LIKELY = [" token", "a", "\N{LATIN SMALL LETTER E WITH ACUTE}", "\N{CJK UNIFIED IDEOGRAPH-65E5}", "\n", "s", ", ", "long " * 9]
UNLIKELY = [
    '"',
    "\\",
    "\x7f",
    "\N{ZERO WIDTH SPACE}",
    "\N{LINE SEPARATOR}",
    "\N{GRINNING FACE}",
    "}],",
    "Any text?",
    "a text that no other has",
]
UNLIKELY += ["Any text?", "a text that no other has", '\x7fextra":0,', '"error"', '"model":"x"', "data: {}\n\n", "x" * 5000, ""]
ODD_STRINGS = [
    rb"\/",
    rb"\u00e9",
    rb"\ud83d\ude00",
    rb"\ud83d",
    rb"\q",
    b"\xff",
    b"\xc3",
    b"\x01",
    b"\t",
    rb"\u0000",
    rb"a\"",
    b'"',
    b"\n",
    b"\\",
]
"""What may stand between the quotes of a string, or may not."""

JSON_STRINGS = st.one_of(
    st.sampled_from([json.dumps(each)[1:-1].encode() for each in LIKELY]),
    st.sampled_from([json.dumps(each, ensure_ascii=False)[1:-1].encode() for each in LIKELY]),
    st.sampled_from([json.dumps(each, ensure_ascii=is_ascii)[1:-1].encode() for each in UNLIKELY for is_ascii in (True, False)]),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=4).map(lambda each: json.dumps(each, ensure_ascii=False)[1:-1].encode()),
    st.sampled_from(ODD_STRINGS),
)

ODD_EVENTS = st.sampled_from(
    [
        ROLE,
        event(choice({"content": None})),
        event(choice({"reasoning": "hm"})),
        event(choice({"reasoning": "hm", "content": "both"})),
        event(choice({"refusal": "no"})),
        event(choice({"content": "b"}, logprobs={"content": [{"token": "b", "logprob": -1.0}]})),
        event(choice({"content": "b"}, logprobs={"content": []})),
        event(choice({"tool_calls": [CALL]})),
        event(choice({"content": "with"}), index=1),
        event({"index": 1, "delta": {"content": "another choice"}, "finish_reason": None}),
        event({"delta": {"content": "no index"}}),
        event(choice({"content": "a"}), {"index": 1, "delta": {"content": "b"}}),
        event(choice({"content": [{"type": "text", "text": "a part"}]})),
        event(choice({"content": "x"}), content="decoy"),
        event(choice({"content": "last"}, "length")),
        event(usage={"prompt_tokens": 1, "completion_tokens": 2}),
        event(choice({"content": "x"}), usage={"prompt_tokens": 3}),
        b'data: {"choices": [{"index": 0, "delta": {"content": "a", "content": "b"}}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"content" : "spaced"}}]}\n\n',
        b"data: {broken\n\n",
        b'data: {"choices": [{"index": 0, "delta": {"content": "cut\n\n',
        b'data: {"error": {"message": "no"}}\n\n',
        b": ping\n\n",
        b"event: message\ndata: {}\n\n",
        b"id: 1\n" + text("with an id"),
        b"data:" + text("close")[6:],
        text("\r\n", end=b"\r\n\r\n"),
        b"data: [DONE]\n\n",
        b"\n\n",
    ]
)

TEMPLATES = st.sampled_from(
    [
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n',
        b'data: {"id":"c","created":2,"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n',
        b'data: {"choices": [{"delta": {"content" : "%b"}, "logprobs": null}], "model": "x"}\r\n\r\n',
        b'data:{"choices":[{"index":0,"delta":{"role":"assistant","content":"%b"}}],"usage":null}\n\n',
    ]
)
FORMS = st.sampled_from([b"%x\r\n%b\r\n", b"%x\r\n%b\r\n", b"%X\r\n%b\r\n"])
ODD_FORMS = st.sampled_from([b"%04x\r\n%b\r\n", b"%x;a=b\r\n%b\r\n", b"%x\n%b\r\n", b"%xz\r\n%b\r\n", b"%x\r\n%b"])


@st.composite
def runs_of_text(draw):
    """Reads of nothing but text: an event in each, or several, in chunks of their own or in one."""
    template, form = draw(TEMPLATES), draw(FORMS)
    events = [template % string for string in draw(st.lists(JSON_STRINGS, min_size=5, max_size=30))]
    count = draw(st.sampled_from([1, 1, 1, 2, 5]))
    groups = [events[at : at + count] for at in range(0, len(events), count)]
    shape = draw(st.sampled_from(["chunks", "chunks", "events"]))
    reads = [chunk(b"".join(group), form) if shape == "events" else b"".join(chunk(each, form) for each in group) for group in groups]
    pauses = draw(st.sampled_from([["turn"], ["turn"], ["turn", "wait", "turn"], ["turn"] * 3 + ["slow"] + ["turn"] * 7 + ["read_on"], []]))
    return [step for number, read in enumerate(reads) for step in (read, *pauses[number % max(len(pauses), 1) :][:1])]


def odd_steps():
    """What is no text, or comes in no good shape."""
    framed = st.builds(chunk, ODD_EVENTS, FORMS)
    misframed = st.builds(chunk, st.just(text("misframed")), ODD_FORMS)
    torn = st.builds(
        lambda each, at: [chunk(each)[:at], "turn", chunk(each)[at:]], st.sampled_from([text("torn"), DONE[0]]), st.integers(1, 60)
    )
    split = st.builds(lambda at: [chunk(text("split")[:at]), chunk(text("split")[at:])], st.integers(1, 60))
    deeds = st.sampled_from(["turn", "wait", "slow", "read_on", "leave", "stop", "cut"])
    return st.one_of(st.tuples(framed, st.just("turn")), st.tuples(framed), st.tuples(misframed), torn, split, st.tuples(deeds))


@st.composite
def plays(draw, length=4):
    """What the upstream and the client do."""
    parts = draw(st.lists(st.tuples(runs_of_text(), odd_steps()), min_size=1, max_size=length))
    steps = [step for run, odd in parts for step in (*run, *odd)]
    end = DONE if draw(st.booleans()) else [DONE[0], DONE[-1]]
    last = draw(st.sampled_from(["turn", "turn", "turn", "leave", "stop", "cut", "wait"]))
    return [chunk(ROLE), "turn", *steps, *draw(runs_of_text()), last, b"".join(map(chunk, end)) + b"0\r\n\r\n"]


OPTIONS = st.one_of(
    st.just({}),
    st.builds(lambda count: {"max_response_events": count}, st.integers(5, 25)),
    st.builds(lambda size: {"max_response_bytes": size}, st.integers(500, 6000)),
    st.just({"timeout_idle_s": 40}),
)


@settings(max_examples=settings.default.max_examples * 3)
@given(plays(), st.sampled_from([*PROTOCOLS]), OPTIONS, st.booleans(), st.booleans(), st.booleans())
def test_a_stream_is_the_same_with_and_without_the_fast_path(steps, protocol, options, is_balanced, is_padded, is_stored):
    alike(steps, protocol=protocol, options=options, is_balanced=is_balanced, is_padded=is_padded, is_stored=is_stored)


@pytest.mark.long
@settings(max_examples=settings.default.max_examples * 6)
@given(plays(40), st.sampled_from([*PROTOCOLS]), OPTIONS)
def test_so_is_a_long_one(steps, protocol, options):
    alike(steps, protocol=protocol, options=options)
