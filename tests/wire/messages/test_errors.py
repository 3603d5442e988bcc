"""Errors in the words of the Messages API."""

import pytest

from antiphon.errors import ApiError, ClientError, context_length_exceeded, invalid_type
from antiphon.wire.messages.errors import message_error, message_error_status


@pytest.mark.parametrize(
    ("status", "expected_status", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (402, 402, "billing_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (409, 409, "invalid_request_error"),
        (413, 413, "request_too_large"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (502, 500, "api_error"),
        (503, 529, "overloaded_error"),
        (504, 504, "timeout_error"),
        (529, 529, "overloaded_error"),
    ],
)
def test_each_status_has_its_type(status, expected_status, kind):
    error = ApiError("x", status=status)
    assert (message_error_status(error), message_error(error).error.type) == (expected_status, kind)


def test_a_path_has_dots_and_stands_in_the_message():
    error = invalid_type("messages[0].content[12].text", "a string", "an integer")
    assert "messages.0.content.12.text" in message_error(error).error.message and "[" not in message_error(error).error.message
    assert message_error(ClientError("It is wrong.", param="tools[3]")).error.message == "tools.3: It is wrong."


def test_too_long_an_input_says_so_in_the_words_that_clients_look_for():
    error = message_error(context_length_exceeded(200_000, 210_000))
    assert (error.error.type, error.error.message) == ("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
    assert message_error_status(ApiError("x", status=413, code="context_length_exceeded")) == 400
