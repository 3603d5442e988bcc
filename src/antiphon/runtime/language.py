"""
Which language a text is in, as far as its script and its most frequent words tell, at a few microseconds.

No model and no table of n-grams: it is a hint for rules, and where a wrong one would do harm, `certain_language` has none.
"""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

MAX_CHARS = 4_000
"""How much of a text `certain_language` reads."""

MAX_GUESS_CHARS = 1_000
"""How much of a text `detect_language` reads."""

MIN_LETTERS = 2

MIN_SHARE = 0.12
"""The part of a text's words that must be frequent ones of its language, to be certain; in prose it is 0.3 to 0.6."""

MIN_LEAD = 1.5
"""How far ahead of every other language it must be, as a factor, to be certain."""

MIN_GUESS, MIN_GUESS_SHARE = 0.2, 0.05
"""The same for a guess: a sentence has such words as every third; a list of names with one of them is in no language."""

# Blocks of the Unicode standard, first and last code point.
_SCRIPTS: tuple[tuple[int, int, str], ...] = (
    (0x0041, 0x024F, "latin"),
    (0x1E00, 0x1EFF, "latin"),
    (0x0370, 0x03FF, "el"),
    (0x0400, 0x052F, "cyrillic"),
    (0x0530, 0x058F, "hy"),
    (0x0590, 0x05FF, "he"),
    (0x0600, 0x06FF, "arabic"),
    (0x0900, 0x097F, "hi"),
    (0x0980, 0x09FF, "bn"),
    (0x0B80, 0x0BFF, "ta"),
    (0x0C00, 0x0C7F, "te"),
    (0x0E00, 0x0E7F, "th"),
    (0x10A0, 0x10FF, "ka"),
    (0x3040, 0x30FF, "ja"),
    (0x3400, 0x9FFF, "zh"),
    (0x1100, 0x11FF, "ko"),
    (0x1F00, 0x1FFF, "el"),
    (0xAC00, 0xD7AF, "ko"),
)

_FREQUENT_WORDS = {
    "cs": "a se na je že to v s z do o i ve za jsou by jsem si tak jak pro od které který když ale není má nebo jako být už jsme co kde "
    "která bude také přes mi mě této tento prosím",
    "da": "og i at er det en til på som de med for af den der har et ikke var jeg han kan fra ved vil men også hvad hvor hvordan om du mig "
    "dig meget noget efter hvornår blev nej ligger hovedstaden vi være dette eller hvorfor skriv dansk digt lav mellem",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er hat dass sie nach "
    "wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber vor zur bis mehr durch man ich du wir kann was "
    "warum wo wer wenn mir mich dir ihr mein dein bitte heute gibt heißt hauptstadt sehr gut hier danke dieser diese dieses macht "
    "kannst schreibe wurde welche welcher zwischen diesen ins meinen meine übersetze erkläre hallo geht's",
    "en": "the of and to in a is that for it as was with be by on not he i this are or his from at which but have an had they you were "
    "their one all we can her has there been if more when will would who so no what how why where do does my your me please about "
    "it's capital explain here thanks tell could write give make should into find let's am",
    "es": "de la que el en y a los se del las un por con no una su para es al lo como más o pero sus le ha me si sin sobre este ya entre "
    "cuando todo esta ser son dos también fue había era muy años hasta desde está mi porque qué sólo han yo hay vez puede todos así "
    "nos cómo cuál dónde quién hola gracias capital te escribe puedes cuándo favor necesito explícame traduce inglés",
    "et": "ja on ei ta et see oli mis ka kui aga oma ning või seda nii olid ma siis mida kuidas kas selle kes minu sa teie meie",
    "fi": "ja on ei se että hän oli en ovat mutta ole kun niin myös joka tai kuin sen minä mitä miten mikä missä sinä me te he tämä olen "
    "miksi jos voi voitko minun kirjoita onko kanssa minulle",
    "fr": "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont avec ou son aux sa cette ces mais "
    "comme on été leur nous vous je tu elle était deux peut être fait comment quel quelle où pourquoi quoi mon ma c'est bonjour merci "
    "capitale qu'est l'on d'un d'une mes écris peux moi te s'il plaît cet ça j'ai salut traduis résume anglais trois",
    "hr": "i je u se na da su za od s o ne a koji kao što ali ili iz to bi sam smo ste kako gdje kada jer nije biti hvala molim koja",
    "hu": "a az és hogy nem is egy ez de van meg volt csak már mint ha még vagy el azt mi mit hogyan hol én te ő kell lehet nagyon ami ki "
    "miért nekem kérlek írj melyik milyen között ezt fővárosa főváros",
    "id": "yang dan di ke dari untuk dengan ini itu adalah tidak saya kamu apa bagaimana mengapa bisa tolong pada akan dalam tentang "
    "buatkan tulis cara antara atau",
    "it": "di e il la che in a per un è del non una sono le i si da con come dei al anche ma lo della più se nel alla o su gli ha delle "
    "questo questa cosa chi dove perché quale mi ti ci ho hai molto essere stato grazie ciao qual capitale dell'italia l'ha scrivi "
    "puoi quando tra",
    "lt": "ir yra į iš kad su tai o bet ar kaip kas aš jis ne nuo už apie prie buvo per jau tik ką kur kodėl mano savo tu mes",
    "lv": "un ir no ar uz par ka kā kas vai es tas bet nav lai tā ko kur kāpēc viņš mēs jūs bija pie tikai šis ļoti man tu",
    "nl": "de van het een en in is dat op te zijn met voor niet aan er om als ook die bij door naar uit maar dan nog wat hoe waarom waar "
    "wie ik je jij hij ze we wij u mijn deze dit of was heeft worden kan hoofdstad bedankt hebben meer over kun schrijf wordt tussen",
    "no": "og i er det som en til på at for med av de ikke den har jeg et var men om han vi fra kan du ble hva hvor hvordan også eller noe "
    "meg deg mye etter når nei ligger hovedstaden være dette der hvorfor skriv mellom norsk dikt blir",
    "pl": "w i na z się nie do to że jest o jak od po za co dla ale czy są był tym ma może tak przez który która które oraz ja ty my go "
    "jej gdzie kiedy dlaczego proszę dziękuję jaka jaki być jestem lub mi mnie napisz między jakie",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à seu sua ou ser quando "
    "muito há nos já está eu também só pelo pela até isso ela entre era são você meu qual onde porquê obrigado olá capital quem minha "
    "escreva este esta porque pode favor sobre preciso explique traduza inglês",
    "ro": "de și în a la cu o nu pe este că din un pentru care mai se sunt ca fi să au dar ce cum unde eu tu el ea noi sau prin ai fost mi "
    "te îmi scrie poți când acest această între",
    "sk": "a sa na je že to v s z do o aj vo za sú by som si tak ako pre od ktoré ktorý keď ale nie má alebo byť už sme čo kde ďakujem",
    "sl": "in je v se na da so za ki pa z s o ne kot ali tudi to po iz bi sem smo kako kje ko ker ni biti kaj zakaj hvala prosim",
    "sv": "och i att det som en på är av för med till den har de inte om ett men var jag vi han kan så från vad hur varför eller du mig "
    "där skriv mellan blev också svenska dikt blir",
    "tr": "ve bir bu için ile da de çok en ne mi daha gibi olarak kadar ama var ben o sen biz nasıl neden nerede kim değil olan her veya "
    "mı yok bana lütfen yaz hangi nedir arasında",
    "vi": "và của là có không được trong một cho với người này các những để khi tôi bạn đã ở như thì từ về cũng gì sao nào rất đó thế tại "
    "vì hãy viết hay làm giữa",
}

_LETTERS = {
    "cs": "ěřů",
    "da": "æø",
    "de": "ß",
    "es": "ñ¿¡",
    "hu": "őű",
    "lt": "ėįų",
    "lv": "ķļņģ",
    "no": "æø",
    "pl": "łżźśęąćń",
    "pt": "ãõ",
    "ro": "ășțţş",
    "tr": "ğı",
    "vi": "ươđạảấầẩậắằẻẽếềểễệỉịọỏốồổộớờởợụủứừửữựỳỵỷỹẫẳẵặẹỗỡ",
}
"""Letters that hardly any other of these languages has. A word with one counts as a frequent word, or for more if it is one."""

_CYRILLIC_LETTERS = {"uk": "іїєґ", "ru": "ыэё", "bg": "ъ"}
_ARABIC_LETTERS = {"ur": "ٹڈڑںےھ", "fa": "پچژگکی"}

_languages_by_word: dict[str, list[str]] = {}
for _language, _words in _FREQUENT_WORDS.items():
    for _word in dict.fromkeys(_words.split()):
        _languages_by_word.setdefault(_word, []).append(_language)

_CODE = re.compile(r"```[^`]*(?:```|\Z)|~~~[^~]*(?:~~~|\Z)|``[^\n]*?``|`[^`\n]+`")
# An address begins where a word does: else a word without `@` is searched from each of its characters, and 4,000 take 40 ms.
_ADDRESS = re.compile(r"\b(?:https?://|www\.)\S+|(?<!\S)\S+@\S+")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


def detect_language(text: str) -> str | None:
    """
    The code of the language that most of a text seems to be in, one of `config.languages.LANGUAGES`; None where there
    is no hint. Code and addresses don't count.
    """
    return _detect(text, is_certain=False)


def certain_language(text: str) -> str | None:
    """The code of the language that a text is in; None where that is in doubt."""
    return _detect(text, is_certain=True)


def _detect(text: str, *, is_certain: bool) -> str | None:
    prose = _ADDRESS.sub(" ", _CODE.sub(" ", text[: MAX_CHARS if is_certain else MAX_GUESS_CHARS])).lower()
    counts = Counter(script for character in prose if character.isalpha() and (script := _script(character)))
    total = counts.total()
    if total < MIN_LETTERS:
        return None
    # A Chinese character is about a word, so names in Latin letters don't make a question English. Kana are Japanese only.
    dense = {script: counts[script] for script in ("zh", "ja", "ko") if counts[script]}
    script, count = counts.most_common(1)[0]
    if script == "latin" and 3 * sum(dense.values()) > count and not is_certain:
        script = max(dense, key=lambda name: dense[name])
    if script in ("zh", "ja", "latin") and counts["ja"] and counts["ja"] + counts["zh"] > counts["latin"]:
        return "ja"
    if is_certain and (count < MIN_LETTERS or 2 * count < total):
        return None
    match script:
        case "latin":
            return _detect_latin(prose, is_certain=is_certain)
        case "cyrillic":
            return _detect_cyrillic(prose, is_certain=is_certain)
        case "arabic":
            return next((language for language, letters in _ARABIC_LETTERS.items() if any(letter in prose for letter in letters)), "ar")
        case _:
            return script


@functools.lru_cache(maxsize=4096)
def _script(character: str) -> str | None:
    code = ord(character)
    return next((name for first, last, name in _SCRIPTS if first <= code <= last), None)


def _detect_latin(text: str, *, is_certain: bool) -> str | None:
    words = _WORD.findall(text.replace("’", "'"))
    (best, score), (_, second) = [*_score(words)[:2], ("", 0.0), ("", 0.0)][:2]
    if is_certain:
        is_enough = score >= max(1.5, MIN_SHARE * len(words)) and score >= MIN_LEAD * second
    else:
        is_enough = score >= max(MIN_GUESS, MIN_GUESS_SHARE * len(words)) and score - second > 1e-9
    return best if is_enough else None


def _score(words: Sequence[str]) -> list[tuple[str, float]]:
    """How many of the words are frequent in each language; one that fewer languages have counts for more."""
    scores: defaultdict[str, float] = defaultdict(float)
    for word in words:
        languages = _languages_by_word.get(word, [])
        for language in languages:
            scores[language] += 1 / len(languages) ** 0.5
        if not word.isascii():
            for language, letters in _LETTERS.items():
                if any(letter in word for letter in letters):
                    scores[language] += 0.5 if language in languages else 1
    return sorted(scores.items(), key=lambda pair: -pair[1])


def _detect_cyrillic(text: str, *, is_certain: bool) -> str | None:
    counts = {language: sum(text.count(letter) for letter in letters) for language, letters in _CYRILLIC_LETTERS.items()}
    # Ukrainian has none of the Russian letters; a text with both quotes one in the other.
    if counts["uk"]:
        return "uk" if counts["uk"] > counts["ru"] or not is_certain else None
    if counts["ru"]:
        return "ru"
    if counts["bg"] > len(text) // 100:
        return "bg"
    return None if is_certain else "ru"
