"""The language of a text is found by its script and its common words."""

import pytest
from hypothesis import given, strategies as st

from antiphon.config.routing import LANGUAGES
from antiphon.runtime.routing.language import detect_language

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


@pytest.mark.parametrize(("language", "text"), SENTENCES)
def test_a_sentence_is_in_its_language(language, text):
    assert detect_language(text) == language


def test_every_language_of_the_configuration_has_a_sentence():
    assert sorted(language for language, _ in SENTENCES) == sorted(LANGUAGES)


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


@given(st.text())
def test_any_text_is_in_a_known_language_or_in_none(text):
    assert detect_language(text) in {*LANGUAGES, None}
