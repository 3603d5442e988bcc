"""Which language a text is taken for: the right one, or none."""

import pytest
from hypothesis import given, strategies as st

from antiphon.config.rewrites import LANGUAGES
from antiphon.runtime.rewriting.language import detect_language, names_language

QUESTIONS = {
    "ar": "ما هي عاصمة فرنسا؟",
    "bg": "Коя е столицата на Франция? Тя е много голям град и вълшебен.",
    "cs": "Jaké je hlavní město Francie a který jazyk se tam mluví?",
    "da": "Hvad er det for noget, og hvornår blev det bygget af romerne?",
    "de": "Wie heißt die Hauptstadt von Frankreich?",
    "el": "Ποια είναι η πρωτεύουσα της Γαλλίας;",
    "en": "What is the capital of France?",
    "es": "¿Cuál es la capital de Francia?",
    "et": "Mis on selle riigi pealinn ja kus see on?",
    "fa": "پایتخت فرانسه چیست و چه شهری است؟",
    "fi": "Mikä on Ranskan pääkaupunki ja missä se on?",
    "fr": "Quelle est la capitale de l'Allemagne ?",
    "he": "מהי בירת צרפת?",
    "hi": "फ़्रांस की राजधानी क्या है?",
    "hr": "Koji je glavni grad ove zemlje i gdje se nalazi, molim?",
    "hu": "Mi Franciaország fővárosa?",
    "it": "Qual è la capitale della Francia?",
    "ja": "フランスの首都はどこですか?",
    "ko": "프랑스의 수도는 어디입니까?",
    "lt": "Kas yra šios šalies sostinė ir kur ji yra?",
    "lv": "Kas ir šīs valsts galvaspilsēta un kur tā ir?",
    "nl": "Wat is de hoofdstad van Frankrijk?",
    "no": "Hva er hovedstaden i Frankrike?",
    "pl": "Jaka jest stolica Francji?",
    "pt": "Qual é a capital da França?",
    "ro": "Care este capitala Franței și unde se află ea?",
    "ru": "Какая столица Франции? Это важный вопрос, мы хотим знать.",
    "sk": "Aké je hlavné mesto Francúzska a kde sa nachádza, keď už o tom hovoríme?",
    "sl": "Kaj je glavno mesto te države in zakaj se tako imenuje?",
    "sv": "Vad är huvudstaden i Frankrike och var ligger den?",
    "th": "เมืองหลวงของฝรั่งเศสคืออะไร",
    "tr": "Fransa'nın başkenti neresi ve bu şehir nasıl bir yer?",
    "uk": "Яка столиця Франції?",
    "vi": "Thủ đô của Pháp là gì?",
    "zh": "法国的首都是哪里?",
}


def test_every_language_has_a_question():
    assert set(QUESTIONS) == set(LANGUAGES)


@pytest.mark.parametrize(("language", "text"), QUESTIONS.items(), ids=QUESTIONS)
def test_a_question_is_in_its_language(language, text):
    assert detect_language(text) == language


@pytest.mark.parametrize(
    "text",
    ["", "x = 1", "12345", "OK", "Paris", "TCP/IP", "https://example.com/the/of/and/to", "```\nthe of and to in\n```", "the der le el"],
)
def test_where_there_is_doubt_there_is_no_language(text):
    assert detect_language(text) is None


def test_code_does_not_tell_the_language_of_a_text():
    text = (
        "Die Funktion gibt die Zahl zurück, und das ist alles, was sie macht.\n```\n"
        + "# this is the one of them that we want\n" * 9
        + "```"
    )
    assert detect_language(text) == "de"


@given(st.text(max_size=300))
def test_any_text_has_a_known_language_or_none(text):
    assert detect_language(text) in {*LANGUAGES, None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Wie sagt man das auf Französisch?", True),
        ("Translate: good morning", True),
        ("Traduis « bonjour »", True),
        ("把这个翻译成英文", True),
        ("What is the capital of France?", False),
        ("Wie heißt die Hauptstadt von Frankreich?", False),
    ],
)
def test_a_question_about_languages_is_known_as_one(text, expected):
    assert names_language(text) is expected
