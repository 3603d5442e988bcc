"""Everything that an engine may say, for properties over random scripts."""

from hypothesis import strategies as st

from antiphon.engine_api import events as talk_events

ID = "resp_1"

texts = st.sampled_from(["", "a", "b c", "\n"])
calls = st.sampled_from(["c1", "c2", "c3"])
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "in_progress"}
any_word = st.one_of(
    st.builds(talk_events.ItemBreak, st.just(ID), st.sampled_from([None, "msg_theirs"])),
    st.builds(talk_events.HostedBegan, st.just(ID), st.just(SEARCH)),
    st.builds(talk_events.HostedMoved, st.just(ID), st.just({"type": "response.web_search_call.searching", "item_id": "ws_1"})),
    st.builds(talk_events.HostedDone, st.just(ID), st.just(SEARCH | {"status": "completed"})),
    st.builds(talk_events.Text, st.just(ID), texts),
    st.builds(talk_events.Refusal, st.just(ID), texts),
    st.builds(talk_events.Reasoning, st.just(ID), texts, st.booleans()),
    st.builds(talk_events.ReasoningBreak, st.just(ID)),
    st.builds(talk_events.Sealed, st.just(ID), texts),
    st.builds(talk_events.Annotated, st.just(ID), st.just({"type": "file_path", "file_id": "f", "index": 0})),
    st.builds(talk_events.Calling, st.just(ID), calls, st.just("f"), st.booleans()),
    st.builds(talk_events.Arguments, st.just(ID), calls, texts),
    st.builds(talk_events.Called, st.just(ID), calls),
    st.builds(talk_events.Used, id=st.just(ID), input_tokens=st.just(1), output_tokens=st.just(2)),
)
any_sound = st.one_of(
    st.builds(talk_events.Spoken, st.just(ID), texts),
    st.builds(talk_events.Sound, st.just(ID), st.sampled_from([b"", bytes(2), bytes(4)])),
)
ending = st.one_of(
    st.builds(talk_events.Ended, st.just(ID), st.sampled_from(["stop", "length", "content_filter", "cancelled"])),
    st.builds(talk_events.Broke, id=st.just(ID), message=st.just("gone")),
)
