"""Messages between the server and the process of a voice."""

from hypothesis import given, strategies as st

from antiphon.speech.tts.link import Frames, NotSaid, Ready, Said, Word, framed, from_voice

MESSAGES = st.lists(
    st.one_of(
        st.just(Ready()),
        st.builds(NotSaid, st.integers(0, 99), st.text()),
        st.builds(Said, st.integers(0, 99), st.binary(), st.just((Word("a ", 3),))),
    )
)


@given(MESSAGES, st.integers(1, 50))
def test_messages_come_whole_however_the_bytes_come(messages, size):
    sent = b"".join(map(framed, messages))
    frames = Frames()
    came = [from_voice.decode(packed) for at in range(0, len(sent), size) for packed in frames.take(sent[at : at + size])]
    assert came == messages
