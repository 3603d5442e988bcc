"""Numbers in English words: how many, which one, years, money, digits, times of day."""

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MONTHS = "January February March April May June July August September October November December".split()

MAX_CARDINAL_DIGITS = 15
"""A number with more digits is read digit by digit."""


def cardinal(number: int) -> str:
    """A cardinal number, the American way: without the `and` in `two hundred and five`."""
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number < 20:
        return _UNITS[number]
    if number < 100:
        tens, rest = divmod(number, 10)
        return _TENS[tens] + (f"-{_UNITS[rest]}" if rest else "")
    value, name = next(scale for scale in _SCALES if number >= scale[0])
    count, rest = divmod(number, value)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """An ordinal number: `twenty-first`."""
    words = cardinal(number)
    start = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[start:]
    return words[:start] + (_ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"))


def year(number: int) -> str:
    """A year of four digits: `nineteen eighty-four`, `two thousand five`, `twenty twenty-six`."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {f'oh {_UNITS[rest]}' if rest < 10 else cardinal(rest)}"


def plural(words: str) -> str:
    """The plural of the last word: `nineteen eighties`."""
    if words.endswith("y"):
        return f"{words[:-1]}ies"
    return words + ("es" if words.endswith(("s", "x")) else "s")


def digits(text: str) -> str:
    """The digits one by one; other characters are left out."""
    return " ".join(_UNITS[int(character)] for character in text if character.isdigit())


def number(text: str) -> str:
    """A number as written: it may have commas between thousands, a decimal point, a sign and leading zeros."""
    sign, bare = ("minus ", text[1:]) if text[:1] in "-−" else ("", text)
    whole, point, fraction = bare.replace(",", "").partition(".")
    if len(whole) > MAX_CARDINAL_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        words = digits(whole)
    else:
        words = cardinal(int(whole or "0"))
    return sign + words + (f" point {digits(fraction)}" if point else "")


def money(amount: str, units: tuple[str, str, str, str]) -> str:
    """
    A price; `units` are the large unit in singular and plural, then the small one.

    A price below one dollar is said in cents; zero cents are not said.
    """
    one, many, small_one, small_many = units
    whole, _, cents = amount.replace(",", "").partition(".")
    if len(cents) not in (0, 2):
        return f"{number(amount)} {many}"
    parts = [f"{number(whole)} {one if int(whole) == 1 else many}"] if int(whole) or not int(cents or 0) else []
    if int(cents or 0):
        parts.append(f"{cardinal(int(cents))} {small_one if int(cents) == 1 else small_many}")
    return " and ".join(parts)


def time_of_day(hour: int, minute: int, meridiem: str) -> str:
    """A time of day; `meridiem` is `a m`, `p m` or empty."""
    if minute:
        words = f"{cardinal(hour)} {f'oh {_UNITS[minute]}' if minute < 10 else cardinal(minute)}"
    elif meridiem:
        words = cardinal(hour)
    else:
        words = f"{cardinal(hour)} o'clock" if 0 < hour <= 12 else f"{cardinal(hour)} hundred"
    return f"{words} {meridiem}".strip()


def date(month: int, day: int, the_year: int | None = None) -> str:
    """A day: `March fifteenth, twenty twenty-six`."""
    words = f"{MONTHS[month - 1]} {ordinal(day)}"
    return words if the_year is None else f"{words}, {year(the_year)}"
