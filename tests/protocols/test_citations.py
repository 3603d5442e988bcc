"""Citations in a streamed text: marks become annotations at the right characters, however the text is cut."""

from hypothesis import given, strategies as st

from antiphon.engine_api.events import AnnotationAdded, TextDelta
from antiphon.protocols.citations import MAX_CITATIONS, CitationWriter
from antiphon.tool_api import Citation

FILE = Citation(marker="【1】", annotation={"type": "file_citation", "file_id": "file-1"})
LINK = Citation(
    marker="【2】", annotation={"type": "url_citation", "url": "u"}, replacement="([a.example](https://a.example))", kind="range"
)
PATH = Citation(marker="sandbox:/mnt/data/a", annotation={"type": "container_file_citation"}, replacement=None, kind="range")
LONGER = Citation(marker="sandbox:/mnt/data/a.csv", annotation={"type": "container_file_citation", "n": 2}, replacement=None, kind="range")


def written(chunks, citations=(FILE, LINK, PATH, LONGER)):
    """The text, and each annotation with the text there was when it came."""
    writer = CitationWriter("r")
    writer.learn(citations)
    events = [event for chunk in chunks for event in writer.write(TextDelta("r", chunk))] + list(writer.flush())
    text, annotations = "", []
    for event in events:
        if isinstance(event, TextDelta):
            assert event.text
            text += event.text
        else:
            assert isinstance(event, AnnotationAdded)
            annotations.append((event.annotation, text))
    return text, annotations


def test_a_file_is_cited_where_its_mark_was():
    text, annotations = written(["Größe zählt 【1】", "."])
    assert text == "Größe zählt ."
    assert annotations == [({"type": "file_citation", "file_id": "file-1", "index": 12}, "Größe zählt ")]


def test_a_link_stands_in_the_place_of_its_mark_and_the_range_covers_it():
    text, [(annotation, before)] = written(["It is so 【", "2】", ", they say."])
    assert text == "It is so ([a.example](https://a.example)), they say."
    assert text[annotation["start_index"] : annotation["end_index"]] == "([a.example](https://a.example))"
    assert before.endswith("))")  # the link is out before it is annotated


def test_the_longest_of_two_marks_that_begin_alike_counts():
    text, [(annotation, _)] = written(["[x](sandbox:/mnt/data/a", ".csv)"])
    assert text == "[x](sandbox:/mnt/data/a.csv)" and annotation["n"] == 2
    assert text[annotation["start_index"] : annotation["end_index"]] == "sandbox:/mnt/data/a.csv"


def test_what_looked_like_a_mark_is_text_at_the_end():
    assert written(["a 【", "1"]) == ("a 【1", [])


def test_no_more_than_the_newest_citations_are_kept():
    many = [Citation(marker=f"<{number}>", annotation={"n": number}) for number in range(MAX_CITATIONS + 1)]
    assert written(["<0><1>"], many)[1] == [({"n": 1, "index": 3}, "<0>")]


@given(
    st.lists(st.sampled_from(["【1】", "【2】", "【", "1", "】", "sandbox:/mnt/data/a", ".csv", " ", "ü", "words "]), max_size=12),
    st.data(),
)
def test_how_the_text_is_cut_makes_no_difference(pieces, data):
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if start < end]
    whole_text, whole = written([text] if text else [])
    cut_text, cut = written(chunks)
    assert cut_text == whole_text and [annotation for annotation, _ in cut] == [annotation for annotation, _ in whole]
    for annotation, before in cut:  # each comes at once, and not before what it is about
        assert annotation.get("end_index", annotation.get("index")) == len(before)
