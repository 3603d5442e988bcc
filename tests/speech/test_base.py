"""What all speech components share."""

from structlog.testing import capture_logs

from antiphon.speech.base import transcription_failed


def test_the_operator_learns_what_broke_in_native_code_and_the_client_only_that_it_did():
    with capture_logs() as lines:
        error = transcription_failed(RuntimeError("Unable to open /srv/models/model.bin"))
    assert error.message == "The audio could not be transcribed."
    assert [line["message"] for line in lines] == ["Unable to open /srv/models/model.bin"]
