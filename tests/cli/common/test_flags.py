"""The errors for mistyped flags."""

import pytest


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["config", "bogus"], "There is no 'bogus'; there are 'check', 'show', and 'schema'. See `antiphon config --help`."),
        (["srve"], "There is no 'srve'; did you mean 'serve'? See `antiphon --help`."),
        (["--bogus"], "There is no option --bogus. See `antiphon --help`."),
        (["ask"], "`antiphon ask` needs QUESTION. See `antiphon ask --help`."),
        (["keys", "create"], "`antiphon keys create` needs --name. See `antiphon keys create --help`."),
        (["serve", "--port"], "--port needs a value. See `antiphon serve --help`."),
        (["serve", "--port", "many"], "--port takes a whole number, not 'many'. See `antiphon serve --help`."),
        (["ask", "Hi", "you"], "`antiphon ask` takes no 'you'; put the question in quotes. See `antiphon ask --help`."),
        (["serve", "it"], "`antiphon serve` takes no 'it'. See `antiphon serve --help`."),
        (["ask", "--jsn", "Hi"], "There is no option --jsn; did you mean --json? See `antiphon ask --help`."),
        (["--hlep"], "There is no option --hlep; did you mean --help? See `antiphon --help`."),
        (["queue", "--jsn"], "There is no option --jsn; did you mean --json? See `antiphon queue --help`."),
        (["keys", "create", "--nam", "x"], "There is no option --nam; did you mean --name? See `antiphon keys create --help`."),
        (["serve", "--prot=9"], "There is no option --prot; did you mean --port? See `antiphon serve --help`."),
        (["serve", "--bogus"], "There is no option --bogus. See `antiphon serve --help`."),
    ],
)
def test_a_mistake_is_told_with_what_to_type_and_the_help_that_is_near(antiphon, typed, told):
    result = antiphon(*typed)
    assert (result.code, result.out, result.err) == (2, "", f"antiphon: {told}\n")
