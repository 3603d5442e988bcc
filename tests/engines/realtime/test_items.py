"""Items of a conversation as the upstream server takes them."""

import pytest

from antiphon.engine_api import history
from antiphon.engines.realtime.items import to_wire_item
from antiphon.errors import ClientError


@pytest.mark.parametrize("inline", ["?", "été", "UklGRg=="])
def test_audio_that_is_no_wav_in_base64_is_refused(inline):
    message = history.Message("user", (history.AudioPart(inline, "wav"),))
    with pytest.raises(ClientError, match="takes audio as mono 16-bit WAV"):
        to_wire_item(message, "item_1", lambda pcm, _rate_hz: pcm.decode())
