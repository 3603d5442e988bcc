"""All events that an engine may deliver, for tests with random scripts."""

from hypothesis import strategies as st

from antiphon.engine_api import events

ID = "resp_1"

texts = st.sampled_from(["", "a", "b c", "\n"])
calls = st.sampled_from(["c1", "c2", "c3"])
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "in_progress"}
any_word = st.one_of(
    st.builds(events.ItemBoundary, st.just(ID), st.sampled_from([None, "msg_theirs"])),
    st.builds(events.HostedToolStarted, st.just(ID), st.just(SEARCH)),
    st.builds(events.HostedToolProgress, st.just(ID), st.just({"type": "response.web_search_call.searching", "item_id": "ws_1"})),
    st.builds(events.HostedToolDone, st.just(ID), st.just(SEARCH | {"status": "completed"})),
    st.builds(events.TextDelta, st.just(ID), texts),
    st.builds(events.RefusalDelta, st.just(ID), texts),
    st.builds(events.ReasoningDelta, st.just(ID), texts, st.booleans()),
    st.builds(events.ReasoningBoundary, st.just(ID)),
    st.builds(events.EncryptedReasoning, st.just(ID), texts),
    st.builds(events.AnnotationAdded, st.just(ID), st.just({"type": "file_path", "file_id": "f", "index": 0})),
    st.builds(events.ToolCallStarted, st.just(ID), calls, st.just("f"), st.booleans()),
    st.builds(events.ToolArgumentsDelta, st.just(ID), calls, texts),
    st.builds(events.ToolCallDone, st.just(ID), calls),
    st.builds(events.Usage, id=st.just(ID), input_tokens=st.just(1), output_tokens=st.just(2)),
)
any_sound = st.one_of(
    st.builds(events.AudioTranscriptDelta, st.just(ID), texts),
    st.builds(events.AudioDelta, st.just(ID), st.sampled_from([b"", bytes(2), bytes(4)])),
)
ending = st.one_of(
    st.builds(events.ResponseEnded, st.just(ID), st.sampled_from(["stop", "length", "content_filter", "cancelled"])),
    st.builds(events.ResponseFailed, id=st.just(ID), message=st.just("gone")),
)
