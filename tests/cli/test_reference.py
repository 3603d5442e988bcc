"""The reference page of the command line."""

import pytest

from support.cli.reference import PAGE, commands, page


def test_the_reference_page_is_what_the_program_says_of_itself():
    assert PAGE.read_text() == page(), "the help has changed: run `make fix`"


@pytest.mark.parametrize("command", commands(), ids=lambda command: " ".join(command) or "itself")
def test_every_command_teaches_by_example(command, antiphon):
    _about, _try, examples = antiphon(*command, "--help").out.partition("\nTry:\n")
    assert " ".join(("antiphon", *command)) in examples
