"""
Which language a text is in, as far as its letters and its most frequent words tell.

No model and no table of n-grams: a rewrite that is not needed does harm, so a text that leaves doubt has no language.
"""

import re
from collections import Counter

from antiphon.runtime.rewriting.replacements import code_places

MAX_CHARS = 4_000
"""As much of a text is looked at."""

MIN_SHARE = 0.12
"""The part of a text's words that must be frequent ones of its language; in prose it is 0.3 to 0.6."""

MIN_LEAD = 1.5
"""So many times as many as of any other language."""

MIN_LETTERS = 2

_SCRIPTS = (
    ("kana", re.compile(r"[\u3040-\u30ff]")),
    ("ko", re.compile(r"[\uac00-\ud7af\u1100-\u11ff]")),
    ("han", re.compile(r"[\u3400-\u9fff]")),
    ("el", re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]")),
    ("cyrillic", re.compile(r"[\u0400-\u04ff]")),
    ("he", re.compile(r"[\u0590-\u05ff]")),
    ("arabic", re.compile(r"[\u0600-\u06ff]")),
    ("hi", re.compile(r"[\u0900-\u097f]")),
    ("th", re.compile(r"[\u0e00-\u0e7f]")),
    ("latin", re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")),
)

_FREQUENT_WORDS = {
    "cs": "a se na je že to v s z do o i ve za jsou by jsem si tak jak pro od které který když ale není má nebo jako být už jsme co kde",
    "da": "og i at er det en til på som de med for af den der har et ikke var jeg han kan fra ved vil men også hvad hvor hvordan om du "
    "mig dig meget noget efter hvornår blev nej ligger hovedstaden",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er hat dass sie "
    "nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber vor zur bis mehr durch man ich du wir kann "
    "was warum wo wer wenn mir mich dir ihr mein dein bitte heute gibt heißt hauptstadt sehr gut hier danke",
    "en": "the of and to in a is that for it as was with be by on not he i this are or his from at which but have an had they you were "
    "their one all we can her has there been if more when will would who so no what how why where do does my your me please about it's "
    "capital explain here thanks tell",
    "es": "de la que el en y a los se del las un por con no una su para es al lo como más o pero sus le ha me si sin sobre este ya entre "
    "cuando todo esta ser son dos también fue había era muy años hasta desde está mi porque qué sólo han yo hay vez puede todos así nos "
    "cómo cuál dónde quién por hola gracias capital",
    "et": "ja on ei ta et see oli mis ka kui aga oma ning või seda nii olid ma siis mida kuidas kas selle kes minu sa teie meie",
    "fi": "ja on ei se että hän oli en ovat mutta ole kun niin myös joka tai kuin sen minä mitä miten mikä missä sinä me te he tämä olen",
    "fr": "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont avec ou son aux sa cette ces mais "
    "comme on été leur nous vous je tu elle était deux peut être fait comment quel quelle où pourquoi quoi mon ma c'est bonjour merci "
    "capitale qu'est l'on d'un d'une",
    "hr": "i je u se na da su za od s o ne a koji kao što ali ili iz to bi sam smo ste kako gdje kada jer nije biti hvala molim koja",
    "hu": "a az és hogy nem is egy ez de van meg volt csak már mint ha még vagy el azt mi mit hogyan hol én te ő kell lehet nagyon ami ki",
    "it": "di e il la che in a per un è del non una sono le i si da con come dei al anche ma lo della più se nel alla o su gli ha delle "
    "questo questa cosa chi dove perché quale mi ti ci ho hai molto essere stato grazie ciao qual capitale dell'italia l'ha",
    "lt": "ir yra į iš kad su tai o bet ar kaip kas aš jis ne nuo už apie prie buvo per jau tik ką kur kodėl mano savo tu mes",
    "lv": "un ir no ar uz par ka kā kas vai es tas bet nav lai tā ko kur kāpēc viņš mēs jūs bija pie tikai šis ļoti man tu",
    "nl": "de van het een en in is dat op te zijn met voor niet aan er om als ook die bij door naar uit maar dan nog wat hoe waarom waar "
    "wie ik je jij hij ze we wij u mijn deze dit of was heeft worden kan hoofdstad bedankt hebben meer over",
    "no": "og i er det som en til på at for med av de ikke den har jeg et var men om han vi fra kan du ble hva hvor hvordan også eller noe "
    "meg deg mye etter når ble nei ligger hovedstaden",
    "pl": "w i na z się nie do to że jest o jak od po za co dla ale czy są był tym ma może tak przez który która które oraz ja ty my go "
    "jej gdzie kiedy dlaczego proszę dziękuję jaka jaki być",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à seu sua ou ser quando "
    "muito há nos já está eu também só pelo pela até isso ela entre era são você meu qual onde porquê obrigado olá capital",
    "ro": "de și în a la cu o nu pe este că din un pentru care mai se sunt ca fi să au dar ce cum unde eu tu el ea noi sau prin ai fost",
    "sk": "a sa na je že to v s z do o aj vo za sú by som si tak ako pre od ktoré ktorý keď ale nie má alebo byť už sme čo kde ďakujem",
    "sl": "in je v se na da so za ki pa z s o ne kot ali tudi to po iz bi sem smo kako kje ko ker ni biti kaj zakaj hvala prosim",
    "sv": "och i att det som en på är av för med till den har de inte om ett men var jag vi han kan så från vad hur var varför eller du",
    "tr": "ve bir bu için ile da de çok en ne mi daha gibi olarak kadar ama var ben o sen biz nasıl neden nerede kim değil olan her veya",
    "vi": "và của là có không được trong một cho với người này các những để khi tôi bạn đã ở như thì từ về cũng gì sao nào rất",
}

_LETTERS = {
    "cs": "ěřů",
    "de": "ß",
    "es": "ñ¿¡",
    "hu": "őű",
    "lt": "ėįų",
    "lv": "ķļņģ",
    "pl": "łżźśęą",
    "pt": "ãõ",
    "ro": "ășțţ",
    "tr": "ğı",
    "vi": "ươđạảấầẩậắằẻẽếềểễệỉịọỏốồổộớờởợụủứừửữựỳỵỷỹ",
}
"""Letters that hardly any other of these languages has; a word with one counts as a frequent word."""

_CYRILLIC_LETTERS = {"uk": "іїєґ", "ru": "ыэё", "bg": "ъ"}

_languages_by_word: dict[str, list[str]] = {}
for _language, _words in _FREQUENT_WORDS.items():
    for _word in dict.fromkeys(_words.split()):
        _languages_by_word.setdefault(_word, []).append(_language)

_ADDRESS = re.compile(r"\b(?:https?://|www\.)\S+|\S+@\S+")

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


def detect_language(text: str) -> str | None:
    """The code of the language that a text is in, apart from code and addresses; None where that is in doubt."""
    words = _prose(text[:MAX_CHARS]).lower()
    counts = {script: len(letters.findall(words)) for script, letters in _SCRIPTS}
    script = max(counts, key=lambda name: counts[name])
    if counts["kana"] and counts["kana"] + counts["han"] > counts["latin"]:
        return "ja" if counts["kana"] + counts["han"] >= MIN_LETTERS else None
    if counts[script] < MIN_LETTERS or 2 * counts[script] < sum(counts.values()):
        return None
    match script:
        case "latin":
            return _detect_latin(words)
        case "cyrillic":
            return _detect_cyrillic(words)
        case "han":
            return "zh"
        case "arabic":
            return "fa" if any(letter in words for letter in "پچژگ") else "ar"
        case _:
            return script


def _prose(text: str) -> str:
    pieces, copied_to = [], 0
    for start, end in code_places(text):
        pieces.append(text[copied_to:start])
        copied_to = end
    return _ADDRESS.sub(" ", " ".join((*pieces, text[copied_to:])))


def _detect_latin(text: str) -> str | None:
    words = _WORD.findall(text.replace("’", "'"))
    scores: Counter[str] = Counter()
    for word in words:
        languages = _languages_by_word.get(word, [])
        for language in languages:
            scores[language] += 1 / len(languages) ** 0.5  # a word of one language alone tells more
        for language, letters in _LETTERS.items():
            if language not in languages and any(letter in word for letter in letters):
                scores[language] += 1
    (best, score), (_, second) = [*scores.most_common(2), ("", 0.0), ("", 0.0)][:2]
    is_certain = score >= max(1.5, MIN_SHARE * len(words)) and score >= MIN_LEAD * second
    return best if is_certain else None


def _detect_cyrillic(text: str) -> str | None:
    counts = {language: sum(text.count(letter) for letter in letters) for language, letters in _CYRILLIC_LETTERS.items()}
    if counts["uk"]:
        return "uk" if counts["uk"] > counts["ru"] else None
    if counts["ru"]:
        return "ru"
    return "bg" if counts["bg"] > len(text) // 100 else None


_TRANSLATION = re.compile(
    r"translat|übersetz|tradu[ciz]|traduis|vertaal|vertal|tłumacz|przekład|перев[ео]|перекла|превед|översätt|oversæt|oversett|kään|fordít"
    r"|přelož|prelož|prevedi|prevesti|çevir|tulkot|versk|tõlgi|dịch|翻译|翻譯|翻訳|訳し|번역|अनुवाद|ترجم|תרגם|μετάφρα|μεταφρά|แปล",
    re.IGNORECASE,
)

_LANGUAGE_NAMES = re.compile(
    r"\b(?:english|englis|anglais|ingl[eéê]s|inglese|engels|angiel|англий|англій|german|deutsch|allemand|alem[aáã]n|tedesc|duits|niemieck"
    r"|немец|німец|french|französ|français|francés|francese|francês|frans|francus|француз|spanish|spanisch|espagnol|español|spagnol|espanhol"
    r"|spaans|hiszpań|испан|іспан|italian|italienisch|italien|włosk|итальян|portugu|portoghese|portugal|dutch|niederländ|néerland|neerland"
    r"|oland|nederland|polish|polnisch|polonais|polaco|polacc|polsk|russian|russisch|russe|ruso|russo|rosyjsk|русск|російськ|ukrain|украин"
    r"|україн|chinese|chinesisch|chinois|chin[oê]s|cinese|japanese|japanisch|japonais|japon[eé]s|giappon|korean|koreanisch|arabic|arabisch|arabe"
    r"|turkish|türkisch|turc|turco|swedish|schwedisch|suédois|sueco|svenska|danish|dänisch|danois|norwegian|norwegisch|finnish|finnisch"
    r"|greek|griechisch|grec|griego|hindi|hebrew|hebräisch|hungarian|ungarisch|czech|tschechisch|romanian|rumänisch)",
    re.IGNORECASE,
)


def names_language(text: str) -> bool:
    """
    Whether a text asks for a translation or names a language: then its answer may well be meant to be in another one.
    """
    return bool(_TRANSLATION.search(text) or _LANGUAGE_NAMES.search(text))
