"""Everything that an engine may say, for properties over random scripts."""

from hypothesis import strategies as st

from antiphon import talk

ID = "resp_1"

texts = st.sampled_from(["", "a", "b c", "\n"])
calls = st.sampled_from(["c1", "c2", "c3"])
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "in_progress"}
any_word = st.one_of(
    st.builds(talk.ItemBreak, st.just(ID), st.sampled_from([None, "msg_theirs"])),
    st.builds(talk.HostedBegan, st.just(ID), st.just(SEARCH)),
    st.builds(talk.HostedMoved, st.just(ID), st.just({"type": "response.web_search_call.searching", "item_id": "ws_1"})),
    st.builds(talk.HostedDone, st.just(ID), st.just(SEARCH | {"status": "completed"})),
    st.builds(talk.Text, st.just(ID), texts),
    st.builds(talk.Refusal, st.just(ID), texts),
    st.builds(talk.Reasoning, st.just(ID), texts, st.booleans()),
    st.builds(talk.ReasoningBreak, st.just(ID)),
    st.builds(talk.Sealed, st.just(ID), texts),
    st.builds(talk.Annotated, st.just(ID), st.just({"type": "file_path", "file_id": "f", "index": 0})),
    st.builds(talk.Calling, st.just(ID), calls, st.just("f"), st.booleans()),
    st.builds(talk.Arguments, st.just(ID), calls, texts),
    st.builds(talk.Called, st.just(ID), calls),
    st.builds(talk.Used, id=st.just(ID), input_tokens=st.just(1), output_tokens=st.just(2)),
)
any_sound = st.one_of(
    st.builds(talk.Spoken, st.just(ID), texts),
    st.builds(talk.Sound, st.just(ID), st.sampled_from([b"", bytes(2), bytes(4)])),
)
ending = st.one_of(
    st.builds(talk.Ended, st.just(ID), st.sampled_from(["stop", "length", "content_filter", "cancelled"])),
    st.builds(talk.Broke, id=st.just(ID), message=st.just("gone")),
)
