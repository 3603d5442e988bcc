"""The language of a text, by its script and its most common words: a hint for rules, at a few microseconds."""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

MAX_CHARACTERS = 1000
"""How much of a text is looked at."""

_MIN_LETTERS = 2

_CODE_BLOCK = re.compile(r"```[^`]*(?:```|\Z)|`[^`\n]*`|https?://\S+")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")

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
    (0xAC00, 0xD7AF, "ko"),
)

# Common words that few other languages of the same script share; a word of two languages counts for both.
_STOP_WORDS: dict[str, str] = {
    "cs": "a je jsem jsou jak co který která které pro že se si na není bude ale nebo když také jako přes mi mě této tento prosím kde",
    "da": "og er det ikke jeg en et den på til af med for hvad hvordan kan du vi har som blev være dette mig "
    "der eller fra hvorfor skriv også dansk digt noget lav mellem",
    "de": "dieser diese dieses macht der die das und ist nicht ich du wir ein eine einen einem einer zu mit auf für von den dem des wie "
    "was warum wenn auch sich es im bitte kann kannst mir schreibe wurde sind oder aber als dass welche "
    "welcher zwischen über",
    "en": "the a an of and is are was were to in that it for with on this what how why who when where which i "
    "you we they my your please can could would write me do does from be as not or but if by at have has "
    "give explain tell make there about should into will",
    "es": "el la los las de y que en un una es por para con no se lo como cómo qué cuál quién está son más pero "
    "del al su mi me te escribe puedes hay muy dónde cuándo porque esta este favor",
    "fi": "ja on ei se että mikä miten miksi minä sinä olen ovat oli kun jos tai mutta myös kuin joka voi "
    "voitko tämä minun kirjoita ole mitä onko missä kanssa minulle",
    "fr": "le la les de des et est un une en que qui pour dans ce cette il elle je tu nous vous sur avec pas ne "
    "au aux du quel quelle comment pourquoi mon ma mes son plus écris peux c'est qu'est sont ou où moi",
    "hu": "a az és egy nem hogy is van mi miért hogyan mint csak meg ez ki lehet kell vagy volt nekem kérlek "
    "írj melyik milyen között ezt mit",
    "id": "yang dan di ke dari untuk dengan ini itu adalah tidak saya kamu apa bagaimana mengapa bisa tolong "
    "pada akan dalam tentang buatkan tulis cara antara atau",
    "it": "il lo la i gli le di e che in un una è per con non si come cosa qual quale perché sono del della dei "
    "al alla nel mi ti scrivi puoi questo questa più anche chi dove quando tra",
    "nl": "de het een en is van ik je jij we niet met voor op te dat die wat hoe waarom kan kun mijn zijn ook "
    "aan er maar als of naar bij schrijf uit worden wordt deze tussen",
    "no": "og er det ikke jeg en et den på til av med for hva hvordan kan du vi har som være dette meg der "
    "eller fra hvorfor skriv mellom også norsk dikt noe blir",
    "pl": "i w na z nie się jest to że jak co czy dla do od po jestem są ale lub który która które proszę mi "
    "mnie napisz gdzie kiedy dlaczego może między przez jaki jaka jakie",
    "pt": "o a os as de e que em um uma é para com não se como qual quem por do da dos das no na mais mas meu "
    "minha você escreva são está este esta isso porque onde quando ao foi pode",
    "ro": "și este nu de la în cu pe care ce cum un o sunt pentru din mai că se să mi te îmi scrie poți unde "
    "când sau dar acest această între",
    "sv": "och är det inte jag en ett den på till av med för vad hur kan du vi har som att mig där eller från "
    "varför skriv mellan blev också svenska dikt blir",
    "tr": "ve bir bu için ile ne nasıl neden değil mi mı da de ben sen çok var yok olan olarak daha gibi bana "
    "lütfen yaz hangi nedir arasında kadar",
    "vi": "là và của không có cho một những các tôi bạn được trong với này đó như thế nào gì sao tại vì hãy viết hay làm giữa",
}

# Letters that hardly any other language of the script has; each is worth a word.
_LETTERS: dict[str, str] = {
    "cs": "ěřů",
    "da": "æø",
    "de": "ß",
    "es": "ñ¿¡",
    "hu": "őű",
    "no": "æø",
    "pl": "łąęśźżćń",
    "pt": "ãõ",
    "ro": "șțăţş",
    "tr": "ğış",
    "vi": "đơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ",
    "uk": "іїєґ",
    "fa": "پچژگکی",
    "ur": "ٹڈڑںےھ",
}

_WORD_LANGUAGES: dict[str, tuple[str, ...]] = {}
for _language, _words in _STOP_WORDS.items():
    for _word in dict.fromkeys(_words.split()):
        _WORD_LANGUAGES[_word] = (*_WORD_LANGUAGES.get(_word, ()), _language)

_LETTER_LANGUAGES: dict[str, tuple[str, ...]] = {}
for _language, _characters in _LETTERS.items():
    for _character in dict.fromkeys(_characters):
        _LETTER_LANGUAGES[_character] = (*_LETTER_LANGUAGES.get(_character, ()), _language)


def detect_language(text: str) -> str | None:
    """
    The ISO 639-1 code of the language that most of a text is in, one of `config.routing.LANGUAGES`; None if that is not
    clear. Code and URLs don't count.
    """
    prose = _CODE_BLOCK.sub(" ", text[:MAX_CHARACTERS]).lower()
    scripts = Counter(script for character in prose if character.isalpha() and (script := _script(character)))
    if scripts.total() < _MIN_LETTERS:
        return None
    script, count = scripts.most_common(1)[0]
    if script == "latin":
        # A letter of Chinese is a word: names in Latin letters don't make a question English.
        dense = {name: 3 * scripts[name] for name in ("zh", "ja", "ko") if scripts[name]}
        if not dense or sum(dense.values()) <= count:
            return _latin_language(prose)
        script = max(dense, key=lambda name: dense[name])
    if script == "cyrillic":
        return "uk" if any(letter in "іїєґ" for letter in prose) else "ru"
    if script == "arabic":
        return _arabic_language(prose)
    if script == "zh" and scripts["ja"]:  # kana stand only in Japanese
        return "ja"
    return script


@functools.lru_cache(maxsize=4096)
def _script(character: str) -> str | None:
    code = ord(character)
    return next((name for first, last, name in _SCRIPTS if first <= code <= last), None)


def _arabic_language(prose: str) -> str:
    counts = Counter(language for character in prose for language in _LETTER_LANGUAGES.get(character, ()) if language in ("fa", "ur"))
    return "ur" if counts["ur"] else "fa" if counts["fa"] else "ar"


def _latin_language(prose: str) -> str | None:
    words = _WORD.findall(prose)
    scores: defaultdict[str, float] = defaultdict(float)
    for word in words:
        _add(scores, _WORD_LANGUAGES.get(word, ()))
    for character in prose:
        if not character.isascii():
            _add(scores, _LETTER_LANGUAGES.get(character, ()))
    ranking = sorted(scores.items(), key=lambda pair: -pair[1])
    if not ranking or ranking[0][1] < 0.2:
        return None
    if len(ranking) > 1 and ranking[0][1] - ranking[1][1] < 1e-9:
        return None
    # A sentence has such words as every third or fourth; a list of names with one of them is in no language.
    return ranking[0][0] if ranking[0][1] >= len(words) / 20 else None


def _add(scores: defaultdict[str, float], languages: Iterable[str]) -> None:
    """Count a word: for less, the more languages have it."""
    shares = tuple(languages)
    for language in shares:
        scores[language] += 1 / len(shares)
