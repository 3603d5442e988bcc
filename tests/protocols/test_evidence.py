"""Which excerpt a sentence comes from, by its words alone: on labelled sentences, and on what must never be cited."""

import csv
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from antiphon.protocols.evidence import MAX_TEXT_CHARS, Excerpt, find_evidence

OWLS = Excerpt("owls.md", "Owls hunt at night. Their feathers make no sound, so mice don't hear them.")
BELLS = Excerpt("bells.md", "Bells are cast in bronze. The largest one weighs 200 tons and hangs in Moscow.")


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def labelled_sentences():
    """Each with the passages of the same subject, of which one or none is its source."""
    folder = Path(__file__).parents[1] / "support"
    passages = table(folder.parents[1] / "bench" / "file_search_passages.tsv")
    subject = ""
    for row in table(folder / "protocols" / "citation_sentences.tsv"):
        own = [each for each in passages if each["passage"].startswith(row["passage"])]
        subject = own[0]["subject"] if own else subject
        others = [each["passage"] for each in passages if each["subject"] == subject]
        yield row["sentence"], [own[0]["passage"]] if own else [], others


def test_what_is_cited_is_right_and_most_of_what_has_a_source_is_cited():
    right = wrong = with_source = 0
    for sentence, own, passages in labelled_sentences():
        found = find_evidence(sentence, [Excerpt(passage, passage) for passage in passages])
        cited = [passages[evidence.excerpt] for evidence in found]
        with_source += bool(own)
        right += bool(cited) and cited == own
        wrong += bool(cited) and cited != own
    # 60 right of 61: a year that stands beside another in one sentence of the source is taken for it.
    assert wrong <= 1
    assert right / with_source >= 0.88


@pytest.mark.parametrize(
    "sentence",
    [
        "Owls don't hunt at night.",  # the opposite
        "Bells of 300 tons are cast in bronze.",  # another number
        "Bells of twelve tons are cast in bronze.",
        "The bells that hang in Madrid are cast in bronze.",  # another name
        "Bells hunt at night without a sound.",  # of two excerpts
        "Owls are birds.",
        "According to the documents, the answer is as follows.",
        "Yes.",
        "200",
        "",
        "```\nOwls hunt at night.\n```",
    ],
)
def test_what_the_excerpts_do_not_say_is_not_cited(sentence):
    assert find_evidence(sentence, [OWLS, BELLS]) == []


def test_what_two_sources_say_is_not_cited_and_what_two_excerpts_of_one_say_is():
    again = "It is known that owls hunt at night in winter."
    assert find_evidence("Owls hunt at night.", [OWLS, Excerpt("more.md", again)]) == []
    assert len(find_evidence("Owls hunt at night.", [OWLS, Excerpt("owls.md", again)])) == 1


def test_each_sentence_is_cited_at_its_own_place():
    text = 'Sure! As you can read:\n- Owls hunt at **night**.\n- "The largest bell weighs 200 tons!" OK?'
    found = find_evidence(text, [BELLS, OWLS])
    assert [(text[each.start : each.end], each.excerpt) for each in found] == [
        ("- Owls hunt at **night", 1),
        ('- "The largest bell weighs 200 tons', 0),
    ]


@given(st.text(), st.lists(st.builds(Excerpt, st.sampled_from("ab"), st.text()), max_size=4))
def test_places_are_in_the_text_and_in_order(text, excerpts):
    ends = [0]
    for evidence in find_evidence(text, excerpts):
        assert ends[-1] <= evidence.start < evidence.end <= len(text)
        assert evidence.excerpt in range(len(excerpts))
        ends.append(evidence.end)


@given(st.lists(st.sampled_from(["owls", "hunt", "at night", "200", "no", ".", "。", "\n", "Moscow", "…"]), max_size=30).map(" ".join))
def test_what_is_copied_from_one_source_is_never_said_to_be_of_another(text):
    assert {each.excerpt for each in find_evidence(text, [BELLS, Excerpt("copy", text)])} <= {1} or text in BELLS.text


@pytest.mark.parametrize("text", ["." * MAX_TEXT_CHARS, "x." * 9000, "owls hunt night. " * 1000, "a\n" * 9000, "。" * 9000, '"' * 19_000])
def test_texts_of_any_form_take_no_time_to_speak_of(text):
    """Nothing is timed: what is quadratic in its length would take minutes."""
    find_evidence(text, [Excerpt(str(number), text[: 500 + number]) for number in range(20)])
