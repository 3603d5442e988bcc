"""Whether a question asks for another language."""

import pytest

from antiphon.runtime.rewriting.translation import names_language


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
