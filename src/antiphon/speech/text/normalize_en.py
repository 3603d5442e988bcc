"""
Text normalization for English: numbers, dates, money, units, abbreviations and addresses in spoken words.

`RULES` are tried in order at each position of a text; the first that matches says what is spoken for its whole match.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from antiphon.speech.text.numerals_en import MONTHS, cardinal, date, digits, money, number, ordinal, plural, time_of_day, year

Match = re.Match[str]


class Rule(NamedTuple):
    """A pattern, and what is spoken for a match; `verbalize` returns None to decline the match."""

    pattern: re.Pattern[str]
    verbalize: Callable[[Match], str | None]


_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}
_SCALES = {
    "k": "thousand",
    "K": "thousand",
    "m": "million",
    "M": "million",
    "bn": "billion",
    "B": "billion",
    "T": "trillion",
    "thousand": "thousand",
    "million": "million",
    "billion": "billion",
    "trillion": "trillion",
}
_UNITS = {
    "km/h": ("kilometre per hour", "kilometres per hour"),
    "m/s": ("metre per second", "metres per second"),
    "mph": ("mile per hour", "miles per hour"),
    "km": ("kilometre", "kilometres"),
    "cm": ("centimetre", "centimetres"),
    "mm": ("millimetre", "millimetres"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "g": ("gram", "grams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ft": ("foot", "feet"),
    "mi": ("mile", "miles"),
    "m": ("metre", "metres"),
    "ml": ("millilitre", "millilitres"),
    "mL": ("millilitre", "millilitres"),
    "L": ("litre", "litres"),
    "ms": ("millisecond", "milliseconds"),
    "min": ("minute", "minutes"),
    "hrs": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "h": ("hour", "hours"),
    "s": ("second", "seconds"),
    "KB": ("kilobyte", "kilobytes"),
    "kB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "KiB": ("kibibyte", "kibibytes"),
    "MiB": ("mebibyte", "mebibytes"),
    "GiB": ("gibibyte", "gibibytes"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "V": ("volt", "volts"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "km²": ("square kilometre", "square kilometres"),
    "m²": ("square metre", "square metres"),
    "m³": ("cubic metre", "cubic metres"),
}
_ABBREVIATIONS = {
    "Dr.": "Doctor",
    "Mr.": "Mister",
    "Mrs.": "Missus",
    "Ms.": "Miz",
    "Prof.": "Professor",
    "Sr.": "Senior",
    "Jr.": "Junior",
    "Capt.": "Captain",
    "Gen.": "General",
    "Gov.": "Governor",
    "Sen.": "Senator",
    "Lt.": "Lieutenant",
    "Sgt.": "Sergeant",
    "Mt.": "Mount",
    "Inc.": "Incorporated",
    "Ltd.": "Limited",
    "Corp.": "Corporation",
    "Ave.": "Avenue",
    "Blvd.": "Boulevard",
    "Dept.": "Department",
    "dept.": "department",
    "approx.": "approximately",
    "e.g.": "for example",
    "i.e.": "that is",
    "etc.": "et cetera",
    "vs.": "versus",
    "vs": "versus",
    "cf.": "compare",
    "et al.": "and others",
    "w/o": "without",
    "w/": "with",
    "No.": "number",
    "no.": "number",
    "Fig.": "Figure",
    "fig.": "figure",
    "Vol.": "Volume",
    "pp.": "pages",
    "min.": "minutes",
    "max.": "maximum",
}
_NEEDS_NUMBER = ("No.", "no.", "Fig.", "fig.", "pp.", "min.", "max.", "Vol.")
_FRACTIONS = {(1, 2): "one half", (1, 4): "one quarter", (3, 4): "three quarters"}
_VULGAR_FRACTIONS = {"½": "one half", "⅓": "one third", "⅔": "two thirds", "¼": "one quarter", "¾": "three quarters", "⅛": "one eighth"}
_SYMBOLS = {
    "->": "to",
    "=>": "means",
    "<=": "is at most",
    ">=": "is at least",
    "!=": "is not equal to",
    "==": "equals",
    "&": "and",
    "%": "percent",
    "+": "plus",
    "=": "equals",
    "≠": "is not equal to",
    "≈": "is about",
    "≤": "is at most",
    "≥": "is at least",
    "<": "is less than",
    ">": "is greater than",
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "√": "the square root of",
    "∞": "infinity",
    "π": "pi",
    "°": "degrees",
    "→": "to",
    "⇒": "means",
    "←": "from",
    "~": "about",
    "@": "at",
    "©": "copyright",
    "®": "",
    "™": "",
    "•": "",
    "·": "",
    "§": "section",
    "†": "",
    "^": "to the power of",
    "\\": "",
    "_": " ",
    "*": "",
    "#": "",
    "|": ", ",
}
_MONTH_NUMBERS = {name: number for number, month in enumerate(MONTHS, 1) for name in (month, month[:3])} | {"Sept": 9}

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_MONTH = "|".join(sorted(_MONTH_NUMBERS, key=len, reverse=True))
_YEAR = r"(?:1[1-9]|20)\d\d"
_PHONES = (
    r"\+\d[\d\s().-]{5,18}",
    r"\(\d{2,5}\)[\d\s.-]{5,14}",
    r"0\d{2,4}[\s-][\d\s-]{4,12}",
    r"\d{3}[-.\s]\d{3}[-.\s]\d{4}",
    r"\d{3}-\d{4}",
)


def _alternatives(names: Mapping[str, object]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


def _url(match: Match) -> str:
    host = re.sub(r"^(?:https?|ftp)://|^www\.", "", match[0])
    host = re.sub(r"^www\.", "", host)
    return re.split(r"[/?#:]", host)[0].replace("-", " dash ").replace(".", " dot ")


def _mail(match: Match) -> str:
    marks = {"@": " at ", ".": " dot ", "_": " underscore ", "-": " dash ", "+": " plus "}
    return "".join(marks.get(character, character) for character in match[0])


def _price(match: Match) -> str:
    sign, symbol, amount, scale = match[1], match[2], match[3], match[4]
    units = _CURRENCIES[symbol]
    words = f"{number(amount)} {_SCALES[scale]} {units[1]}" if scale else money(amount, units)
    return f"minus {words}" if sign else words


def _iso_date(match: Match) -> str | None:
    return _day(int(match[2]), int(match[3]), int(match[1]))


def _slashed_date(match: Match) -> str | None:
    first, second, the_year = int(match[1]), int(match[2]), int(match[3])
    return _day(first, second, the_year) if first <= len(MONTHS) else _day(second, first, the_year)


def _day(month: int, day: int, the_year: int | None = None) -> str | None:
    return date(month, day, the_year) if 1 <= month <= len(MONTHS) and 1 <= day <= 31 else None


def _month_day(match: Match) -> str | None:
    return _day(_MONTH_NUMBERS[match[1]], int(match[2]), int(match[3]) if match[3] else None)


def _day_month(match: Match) -> str | None:
    month = _MONTH_NUMBERS[match[2]]
    if not 1 <= int(match[1]) <= 31:
        return None
    return f"{ordinal(int(match[1]))} of {MONTHS[month - 1]}" + (f" {year(int(match[3]))}" if match[3] else "")


def _time(match: Match) -> str | None:
    hour, minute, second, meridiem = int(match[1]), int(match[2]), match[3], match[4]
    if hour > 24 or minute > 59:
        return None
    words = time_of_day(hour, minute, f"{meridiem[0].lower()} m" if meridiem else "")
    return f"{words} and {cardinal(int(second))} seconds" if second else words


def _hour(match: Match) -> str | None:
    return f"{number(match[1])} {match[2][0].lower()} m" if int(match[1]) <= 12 else None


def _phone(match: Match) -> str | None:
    groups = re.findall(r"\d+", match[0])
    count = sum(map(len, groups))
    if not 7 <= count <= 15 or (len(groups) < 3 and match[0][0] not in "+(0" and count != 7):
        return None
    return ("plus " if match[0][0] == "+" else "") + ", ".join(digits(group) for group in groups)


def _measure(match: Match) -> str:
    one, many = _UNITS[match[2]]
    return f"{number(match[1])} {one if match[1] in ('1', '-1') else many}"


def _fraction(match: Match) -> str:
    numerator, denominator = int(match[1]), int(match[2])
    if (numerator, denominator) == (24, 7):
        return "twenty-four seven"
    if (numerator, denominator) in _FRACTIONS:
        return _FRACTIONS[numerator, denominator]
    if numerator < denominator <= 20 and denominator > 2:
        return f"{cardinal(numerator)} {ordinal(denominator) if numerator == 1 else plural(ordinal(denominator))}"
    return f"{cardinal(numerator)} over {cardinal(denominator)}"


def _range(match: Match) -> str:
    first, last = match[1], match[2]
    if re.fullmatch(_YEAR, first) and re.fullmatch(_YEAR, last):
        return f"{year(int(first))} to {year(int(last))}"
    return f"{number(first)} to {number(last)}"


def _version(match: Match) -> str:
    return ("version " if match[1] else "") + " point ".join(number(part) for part in match[2].split("."))


def _decade(match: Match) -> str:
    return plural(year(int(match[1])) if len(match[1]) == 4 else cardinal(int(match[1])))


def _abbreviation(match: Match) -> str | None:
    word, rest = match[0], match.string[match.end() :].lstrip()
    if word in _NEEDS_NUMBER and not rest[:1].isdigit():
        return None
    ends_sentence = word.endswith(".") and word in ("etc.", "Inc.", "Ltd.", "Corp.", "Jr.", "Sr.") and not rest
    return _ABBREVIATIONS[word] + ("." if ends_sentence else "")


def _saint(match: Match) -> str:
    return "Saint" if match.string[match.end() :].lstrip()[:1].isupper() else "Street"


def _rule(pattern: str, verbalize: Callable[[Match], str | None]) -> Rule:
    return Rule(re.compile(pattern), verbalize)


# The order counts: a date before a range, a number with its unit before the number alone.
RULES: tuple[Rule, ...] = (
    _rule(r"(?:https?://|www\.)[^\s<>()\[\]\"']*[\w/]", _url),
    _rule(r"[\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+", _mail),
    _rule(rf"([-−]?)([{''.join(_CURRENCIES)}])\s?({_NUMBER})(?:\s?({_alternatives(_SCALES)})\b)?", _price),
    _rule(r"\b(\d{4})-(\d\d)-(\d\d)\b", _iso_date),
    _rule(r"\b(\d{1,2})/(\d{1,2})/(\d{4})\b", _slashed_date),
    _rule(rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?(?:,? ({_YEAR}))?\b(?![:.%]\d)", _month_day),
    _rule(rf"\b(\d{{1,2}})(?:st|nd|rd|th)? ({_MONTH})\b\.?(?:,? ({_YEAR}))?(?!\d)", _day_month),
    _rule(r"\b(\d{1,2}):(\d\d)(?::(\d\d))?(?:\s?([AaPp])\.?[Mm]\b\.?)?(?!\d)", _time),
    _rule(r"\b(\d{1,2})\s?([AaPp])(?:\.[Mm]\.|[Mm]\b)", _hour),
    _rule(rf"(?<![\w.,])(?:{'|'.join(_PHONES)})(?<=\d)(?![\w-])", _phone),
    _rule(r"(?<!\w)['’]?((?:1\d|20)\d0|[2-9]0)['’]?s\b", _decade),
    _rule(rf"(?<![\w.])([-−]?(?:{_NUMBER}))\s?({_alternatives(_UNITS)})(?![\w/²³°])", _measure),
    _rule(rf"(?<![\w.])([-−]?(?:{_NUMBER}))\s?%", lambda match: f"{number(match[1])} percent"),
    _rule(r"\b(\d+)(?:st|nd|rd|th)\b", lambda match: ordinal(int(match[1]))),
    _rule(r"\b(v)?(\d+(?:\.\d+){2,})\b", _version),
    _rule(rf"(?<![\w.,-])({_NUMBER})\s?[-–—]\s?({_NUMBER})(?![\w-]|[.,]\d)", _range),
    _rule(r"(?<![\w/.])(\d{1,3})/(\d{1,3})(?![\w/]|\.\d)", _fraction),
    _rule(r"(?<=\d)[x×*](?=\d)|(?<=\d) [x×*] (?=\d)|(?<=\w) \* (?=\w)", lambda _: " times "),
    _rule(rf"\b({_NUMBER})[x×](?!\w)", lambda match: f"{number(match[1])} times"),
    _rule(r"#(\d+)\b", lambda match: f"number {number(match[1])}"),
    _rule(rf"(?<![\w.,])({_YEAR})(?!\w|[.,]\d)", lambda match: year(int(match[1]))),
    _rule(rf"(?<![\w.])[-−](?:{_NUMBER})(?!\w)", lambda match: number(match[0])),
    _rule(rf"(?<!\d)({_NUMBER})(?!\d)", lambda match: number(match[1])),
    _rule(r"\bSt\.", _saint),
    _rule(rf"(?<!\w)(?:{_alternatives(_ABBREVIATIONS)})(?!\w)", _abbreviation),
    _rule(r"\b([CF])#", lambda match: f"{match[1]} sharp"),
    _rule(r"\bC\+\+", lambda _: "C plus plus"),
    _rule(rf"[{''.join(_VULGAR_FRACTIONS)}]", lambda match: _VULGAR_FRACTIONS[match[0]]),
    _rule(r"(?<=[a-z])/(?=[a-z])", lambda _: " or "),
    _rule(r"(?<=[A-Z])/(?=[A-Z])|(?<=\w)_(?=\w)", lambda _: " "),
    _rule(r"(?<=\w)[–—](?=\w)", lambda _: ", "),
    _rule(r"(?<=\w)/(?=\w)", lambda _: " slash "),
    _rule(_alternatives(_SYMBOLS), lambda match: _SYMBOLS[match[0]]),
)

_ANY_RULE = re.compile("|".join(f"(?:{rule.pattern.pattern})" for rule in RULES))
"""Any of the rules, in one search: most of a text matches none of them."""


def normalize(text: str) -> Iterator[tuple[str, str]]:
    """The text in parts, each with what is spoken for it; the two are equal for a part that no rule matches."""
    output_end = position = 0
    while (match := _ANY_RULE.search(text, position)) is not None:
        start = match.start()
        end, spoken_text = _apply_rules(text, start)
        if spoken_text is None:
            position = start + 1
            continue
        if output_end < start:
            yield text[output_end:start], text[output_end:start]
        yield text[start:end], _add_spaces(text, start, end, spoken_text)
        output_end = position = end
    if output_end < len(text):
        yield text[output_end:], text[output_end:]


def _apply_rules(text: str, start: int) -> tuple[int, str | None]:
    for rule in RULES:
        match = rule.pattern.match(text, start)
        if match is not None and match.end() > start and (spoken_text := rule.verbalize(match)) is not None:
            return match.end(), spoken_text
    return start, None


def _add_spaces(text: str, start: int, end: int, spoken_text: str) -> str:
    """The spoken text, with spaces where it touches the letters around it."""
    before = " " if spoken_text[:1].isalnum() and text[start - 1 : start].isalnum() and start else ""
    after = " " if spoken_text[-1:].isalnum() and text[end : end + 1].isalnum() else ""
    return f"{before}{spoken_text}{after}"
