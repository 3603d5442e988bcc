"""English text in words to be read aloud."""

import pytest
from hypothesis import given, strategies as st

from antiphon.speech.text.normalize_en import normalize


def spoken(text):
    return "".join(said for _, said in normalize(text))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("3 cats, 1,234 dogs", "three cats, one thousand two hundred thirty-four dogs"),
        ("3.14 pies; -5 degrees.", "three point one four pies; minus five degrees."),
        ("In 1984, 2005 and 2026.", "In nineteen eighty-four, two thousand five and twenty twenty-six."),
        ("the 1990s and the '80s", "the nineteen nineties and the eighties"),
        ("$5, $5.20, €1,000.50", "five dollars, five dollars and twenty cents, one thousand euros and fifty cents"),
        ("$3.5 million or $20M", "three point five million dollars or twenty million dollars"),
        ("50% of it", "fifty percent of it"),
        ("At 5:30 pm, 17:05 and 5 p.m.", "At five thirty p m, seventeen oh five and five p m"),
        ("2024-03-15", "March fifteenth, twenty twenty-four"),
        ("3/15/2024 or 15/3/2024", "March fifteenth, twenty twenty-four or March fifteenth, twenty twenty-four"),
        ("March 15, 2024 and July 4th", "March fifteenth, twenty twenty-four and July fourth"),
        ("15 March 2024", "fifteenth of March twenty twenty-four"),
        ("Call 555-123-4567.", "Call five five five, one two three, four five six seven."),
        ("+1 (555) 123-4567", "plus one, five five five, one two three, four five six seven"),
        ("5 km, 10kg, 20°C, 1 km, 60 mph", "five kilometres, ten kilograms, twenty degrees Celsius, one kilometre, sixty miles per hour"),
        ("the 1st and 22nd", "the first and twenty-second"),
        ("1/2, 2/3, 24/7", "one half, two thirds, twenty-four seven"),
        ("10-20 people, 1914–1918", "ten to twenty people, nineteen fourteen to nineteen eighteen"),
        ("Python 3.11.2", "Python three point eleven point two"),
        ("3x and 2 * 3 = 6", "three times and two times three equals six"),
        ("Dr. Smith, e.g. St. John of Main St.", "Doctor Smith, for example Saint John of Main Street"),
        ("No. 5, but no.", "number five, but no."),
        ("https://www.example.com/path?x=1 now", "example dot com now"),
        ("joe.x@example.com", "joe dot x at example dot com"),
        ("snake_case and/or TCP/IP", "snake case and or or TCP IP"),
        ("x >= 5 & y", "x is at least five and y"),
        ("C++ and C#", "C plus plus and C sharp"),
        ("well-known, don't", "well-known, don't"),
        ("GPT-4o", "GPT-four o"),
    ],
)  # fmt: skip
def test_what_is_read_otherwise_than_it_is_written(written, said):
    assert spoken(written) == said


@given(st.text(alphabet=st.sampled_from("ab 159,./:-$%€°#@_xk\n"), max_size=60))
def test_nothing_that_was_written_is_lost(text):
    assert "".join(written for written, _ in normalize(text)) == text


@pytest.mark.parametrize("text", ["1" * 5000, "1,111" * 1000, "a." * 3000, "+1 " * 3000, "a@" * 3000, "1-" * 3000, "Mar 1 " * 1000])
def test_no_text_takes_long(text):
    assert "".join(written for written, _ in normalize(text)) == text
