"""Numbers in words."""

import pytest

from antiphon.speech.text.numerals_en import cardinal, date, digits, money, number, ordinal, plural, time_of_day, year

DOLLARS = ("dollar", "dollars", "cent", "cents")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (234, "two hundred thirty-four"),
        (1_001, "one thousand one"),
        (2_500_000, "two million five hundred thousand"),
        (-7, "minus seven"),
    ],
)
def test_how_many(value, words):
    assert cardinal(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(1, "first"), (2, "second"), (5, "fifth"), (12, "twelfth"), (20, "twentieth"), (21, "twenty-first"), (100, "one hundredth")],
)
def test_which_one(value, words):
    assert ordinal(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1066, "ten sixty-six"),
        (1900, "nineteen hundred"),
        (1905, "nineteen oh five"),
        (2000, "two thousand"),
        (2009, "two thousand nine"),
        (2026, "twenty twenty-six"),
    ],
)
def test_a_year(value, words):
    assert year(value) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,234", "one thousand two hundred thirty-four"),
        ("3.14", "three point one four"),
        ("-5", "minus five"),
        ("007", "zero zero seven"),
        ("1234567890123456", "one two three four five six seven eight nine zero one two three four five six"),
    ],
)
def test_a_number_as_it_is_written(text, words):
    assert number(text) == words


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("1", "one dollar"),
        ("5.20", "five dollars and twenty cents"),
        ("0.99", "ninety-nine cents"),
        ("0", "zero dollars"),
        ("1.01", "one dollar and one cent"),
        ("2.5", "two point five dollars"),
    ],
)
def test_a_price(amount, words):
    assert money(amount, DOLLARS) == words


def test_a_time_of_day():
    assert time_of_day(5, 30, "p m") == "five thirty p m"
    assert time_of_day(9, 5, "") == "nine oh five"
    assert time_of_day(9, 0, "") == "nine o'clock"
    assert time_of_day(14, 0, "") == "fourteen hundred"
    assert time_of_day(5, 0, "a m") == "five a m"


def test_a_day():
    assert date(3, 15, 2026) == "March fifteenth, twenty twenty-six"
    assert date(7, 4) == "July fourth"


def test_digits_and_plurals():
    assert digits("4-2") == "four two"
    assert [plural(word) for word in ("eighty", "six", "third")] == ["eighties", "sixes", "thirds"]
