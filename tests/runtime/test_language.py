"""The language of a text is found by its script and its common words: a guess, or one that is certain."""

import pytest
from hypothesis import given, strategies as st

from antiphon.config.languages import LANGUAGES
from antiphon.runtime.language import certain_language, detect_language

SENTENCES = [
    ("ar", "اكتب قصيدة عن البحر"),
    ("bn", "সমুদ্র নিয়ে একটি কবিতা লেখো"),
    ("cs", "Napiš mi báseň o moři"),
    ("da", "Kan du skrive noget om havet, og hvad skal jeg gøre af det?"),
    ("de", "Wie beweise ich, dass es unendlich viele Primzahlen gibt?"),
    ("el", "Γράψε ένα ποίημα για τη θάλασσα"),
    ("en", "Write a poem about the sea"),
    ("es", "¿Cuál es la capital de Francia?"),
    ("fa", "شعری درباره دریا بنویس"),
    ("fi", "Mikä on paras tapa oppia ja miten se tehdään?"),
    ("fr", "Écris une fonction qui trie une liste"),
    ("he", "כתוב שיר על הים"),
    ("hi", "समुद्र पर एक कविता लिखो"),
    ("hu", "Írj egy verset a tengerről"),
    ("hy", "Գրիր բանաստեղծություն ծովի մասին"),
    ("id", "Tulis puisi tentang laut yang indah"),
    ("it", "Scrivi una poesia sul mare"),
    ("ja", "海についての詩を書いてください"),
    ("ka", "დაწერე ლექსი ზღვაზე"),
    ("ko", "바다에 대한 시를 써 줘"),
    ("nl", "Schrijf een gedicht over de zee"),
    ("no", "Skriv et dikt om havet, og hva det blir til for meg"),
    ("pl", "Napisz wiersz o morzu, proszę"),
    ("pt", "Escreva um poema sobre o mar, por favor"),
    ("ro", "Scrie o poezie despre mare și cer"),
    ("ru", "Напиши стихотворение о море"),
    ("sv", "Vad är skillnaden mellan de här två, och varför?"),
    ("ta", "கடல் பற்றி ஒரு கவிதை எழுது"),
    ("te", "సముద్రం గురించి ఒక కవిత రాయి"),
    ("th", "เขียนบทกวีเกี่ยวกับทะเล"),
    ("tr", "Bana deniz hakkında bir şiir yaz"),
    ("uk", "Напиши вірш про море і небо"),
    ("ur", "سمندر کے بارے میں ایک نظم لکھیں"),
    ("vi", "Hãy viết một bài thơ về biển"),
    ("zh", "写一首关于海的诗"),
]


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


REQUESTS = [
    ("de", "Übersetze diesen Text ins Englische"),
    ("de", "Hallo, wie geht's?"),
    ("es", "Explícame la teoría de la relatividad"),
    ("es", "Necesito ayuda con mi tarea"),
    ("fr", "Traduis ce texte en anglais, s'il te plaît"),
    ("fr", "Résume cet article en trois phrases"),
    ("pt", "Traduza este texto para o inglês"),
    ("ro", "Te rog să îmi explici teoria relativității"),
]


def test_every_language_of_the_configuration_has_a_text():
    assert {language for language, _ in SENTENCES} | set(QUESTIONS) == set(LANGUAGES)


@pytest.mark.parametrize(("language", "text"), [*SENTENCES, *QUESTIONS.items(), *REQUESTS])
def test_a_text_is_in_its_language(language, text):
    assert detect_language(text) == language
    assert certain_language(text) in (language, None)


@pytest.mark.parametrize(("language", "text"), QUESTIONS.items(), ids=QUESTIONS)
def test_the_language_of_a_plain_question_is_certain(language, text):
    assert certain_language(text) == language


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("zh", "用Python写一个排序函数"),
        ("de", "Was macht dieser Code? ```for the thing in that: print(what is it)```"),
        ("fr", "Que fait https://example.com/this/is/the/way et pourquoi ?"),
    ],
)
def test_names_code_and_addresses_do_not_count(language, text):
    assert detect_language(text) == language


@pytest.mark.parametrize("text", ["", "42 + 1", "?", "`ls -l`", "Foo Bar Baz", "x"])
def test_what_is_in_no_language_is_in_none(text):
    assert detect_language(text) is None


@pytest.mark.parametrize(
    "text",
    ["", "x = 1", "12345", "OK", "Paris", "TCP/IP", "https://example.com/the/of/and/to", "```\nthe of and to in\n```", "the der le el"],
)
def test_where_there_is_doubt_there_is_no_language(text):
    assert certain_language(text) is None


def test_code_does_not_tell_the_language_of_a_text():
    text = (
        "Die Funktion gibt die Zahl zurück, und das ist alles, was sie macht.\n```\n"
        + "# this is the one of them that we want\n" * 9
        + "```"
    )
    assert certain_language(text) == "de"


@given(st.text(max_size=300))
def test_any_text_is_in_a_known_language_or_in_none(text):
    assert {detect_language(text), certain_language(text)} <= {*LANGUAGES, None}
