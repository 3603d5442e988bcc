"""Messages between the server and the process of a voice."""

from hypothesis import given, strategies as st

from antiphon.speech.tts.link import SynthesisDone, SynthesisFailed, TimedWord, VoiceFrameReader, VoiceReady, encode_frame, event_decoder

MESSAGES = st.lists(
    st.one_of(
        st.just(VoiceReady()),
        st.builds(SynthesisFailed, st.integers(0, 99), st.text()),
        st.builds(SynthesisDone, st.integers(0, 99), st.binary(), st.just((TimedWord("a ", 3),))),
    )
)


@given(MESSAGES, st.integers(1, 50))
def test_messages_come_whole_however_the_bytes_come(messages, size):
    sent = b"".join(map(encode_frame, messages))
    frames = VoiceFrameReader()
    came = [event_decoder.decode(packed) for at in range(0, len(sent), size) for packed in frames.feed(sent[at : at + size])]
    assert came == messages
