"""The reference page of the command line."""

import pytest

from support.cli.reference import PAGE, page, verbs


def test_the_reference_page_is_what_the_program_says_of_itself():
    assert PAGE.read_text() == page(), "the help has changed: run `make fix`"


@pytest.mark.parametrize("verb", verbs(), ids=lambda verb: " ".join(verb) or "itself")
def test_every_verb_teaches_by_example(verb, antiphon):
    _about, _try, examples = antiphon(*verb, "--help").out.partition("\nTry:\n")
    assert " ".join(("antiphon", *verb)) in examples
