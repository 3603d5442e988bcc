"""What is said of what was typed wrongly."""

import pytest


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["config", "bogus"], "There is no 'bogus'; there are 'check', 'show', and 'schema'. `antiphon config --help` says what there is."),
        (["srve"], "There is no 'srve'; did you mean 'serve'? `antiphon --help` says what there is."),
        (["--bogus"], "There is no option --bogus. `antiphon --help` says what there is."),
        (["ask"], "`antiphon ask` needs QUESTION. `antiphon ask --help` says what there is."),
        (["keys", "create"], "`antiphon keys create` needs --name. `antiphon keys create --help` says what there is."),
        (["serve", "--port"], "--port needs a value. `antiphon serve --help` says what there is."),
        (["serve", "--port", "many"], "--port takes a whole number, not 'many'. `antiphon serve --help` says what there is."),
        (["ask", "Hi", "you"], "`antiphon ask` takes no 'you'; put the question in quotes. `antiphon ask --help` says what there is."),
        (["serve", "it"], "`antiphon serve` takes no 'it'. `antiphon serve --help` says what there is."),
        (["ask", "--jsn", "Hi"], "There is no option --jsn. `antiphon ask --help` says what there is."),
    ],
)
def test_a_mistake_is_told_with_what_to_type_and_the_help_that_is_near(antiphon, typed, told):
    result = antiphon(*typed)
    assert (result.code, result.out, result.err) == (2, "", f"antiphon: {told}\n")
