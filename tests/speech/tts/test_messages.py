"""Messages between the server and the process of a voice."""

from hypothesis import given, strategies as st

from antiphon.framing import FrameDecoder, pack_frame
from antiphon.speech.tts.messages import SynthesisDone, SynthesisFailed, SynthesizedAudio, TimedWord, VoiceReady, event_decoder

MESSAGES = st.lists(
    st.one_of(
        st.just(VoiceReady()),
        st.builds(SynthesisFailed, st.integers(0, 99), st.text()),
        st.builds(SynthesisDone, st.integers(0, 99)),
        st.builds(SynthesizedAudio, st.integers(0, 99), st.binary(), st.just((TimedWord("a ", 3),))),
    )
)


@given(MESSAGES, st.integers(1, 50))
def test_messages_come_whole_however_the_bytes_come(messages, size):
    sent = b"".join(map(pack_frame, messages))
    frames = FrameDecoder(event_decoder)
    came = [message for at in range(0, len(sent), size) for message in frames.feed(sent[at : at + size])]
    assert came == messages
