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
"""Of digits; a number with more is read digit by digit."""


def cardinal(number: int) -> str:
    """How many: `two hundred and five` is said without the `and`, as in America."""
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
    """Which one: `twenty-first`."""
    words = cardinal(number)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    return words[:cut] + (_ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"))


def year(number: int) -> str:
    """A year of four digits: `nineteen eighty-four`, `two thousand five`, `twenty twenty-six`."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {f'oh {_UNITS[rest]}' if rest < 10 else cardinal(rest)}"


def plural(words: str) -> str:
    """Several of what the last word says: `nineteen eighties`."""
    if words.endswith("y"):
        return f"{words[:-1]}ies"
    return words + ("es" if words.endswith(("s", "x")) else "s")


def digits(text: str) -> str:
    """Digit by digit; whatever else there is, is left out."""
    return " ".join(_UNITS[int(character)] for character in text if character.isdigit())


def number(text: str) -> str:
    """A number as it is written: with commas between thousands, a point, a sign, leading zeros."""
    sign, bare = ("minus ", text[1:]) if text[:1] in "-−" else ("", text)
    whole, point, fraction = bare.replace(",", "").partition(".")
    if len(whole) > MAX_CARDINAL_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        words = digits(whole)
    else:
        words = cardinal(int(whole or "0"))
    return sign + words + (f" point {digits(fraction)}" if point else "")


def money(amount: str, units: tuple[str, str, str, str]) -> str:
    """
    A price; `units` are its large and small unit, one and many of each.

    A price in cents only is said in cents; nothing is said of no cents.
    """
    one, many, small_one, small_many = units
    whole, _, cents = amount.replace(",", "").partition(".")
    if len(cents) not in (0, 2):
        return f"{number(amount)} {many}"
    said = [f"{number(whole)} {one if int(whole) == 1 else many}"] if int(whole) or not int(cents or 0) else []
    if int(cents or 0):
        said.append(f"{cardinal(int(cents))} {small_one if int(cents) == 1 else small_many}")
    return " and ".join(said)


def time_of_day(hour: int, minute: int, meridiem: str) -> str:
    """A time of day; `half` is `a m`, `p m` or nothing."""
    if minute:
        said = f"{cardinal(hour)} {f'oh {_UNITS[minute]}' if minute < 10 else cardinal(minute)}"
    elif meridiem:
        said = cardinal(hour)
    else:
        said = f"{cardinal(hour)} o'clock" if 0 < hour <= 12 else f"{cardinal(hour)} hundred"
    return f"{said} {meridiem}".strip()


def date(month: int, day: int, the_year: int | None = None) -> str:
    """A day: `March fifteenth, twenty twenty-six`."""
    said = f"{MONTHS[month - 1]} {ordinal(day)}"
    return said if the_year is None else f"{said}, {year(the_year)}"
