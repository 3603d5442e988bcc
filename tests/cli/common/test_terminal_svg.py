"""A terminal's output as SVG."""

import io
from xml.etree import ElementTree

from antiphon.cli.common.terminal_svg import OutputRecorder, terminal_svg

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_line_is_in_it_with_its_spaces():
    output = "1  An answer\n     you  What is 1 < 2 & 3?\n\n   model  Yes.\n          0.22 s\n"
    assert texts(terminal_svg("demo", output, 80)) == [
        "demo",
        "1  An answer",
        "     you  What is 1 < 2 & 3?",
        "   model  Yes.",
        "          0.22 s",
    ]


def test_titles_speakers_and_remarks_stand_out():
    output = "1  An answer\n     you  Hi\n   model  Ho\n     Ada  is done\n          and so on\n          0.2 s, 3 tokens\nplain"
    svg = ElementTree.fromstring(terminal_svg("demo", output, 80))
    assert [(span.get("class"), span.text) for span in svg.iter(f"{SVG}tspan")] == [
        ("title", "1  An answer"),
        ("user", "you"),
        ("model", "model"),
        ("model", "Ada"),
        ("remark", "0.2 s, 3 tokens"),
    ]


def test_what_xml_forbids_is_replaced():
    assert texts(terminal_svg("demo", "a\x1b[31mb\x00\ud800", 80))[1] == "a\N{REPLACEMENT CHARACTER}[31mb" + "\N{REPLACEMENT CHARACTER}" * 2


def test_the_picture_is_as_wide_as_the_terminal_or_its_longest_line():
    width = [int(ElementTree.fromstring(terminal_svg("demo", text, 80)).get("width") or 0) for text in ("a", "a" * 100, "東京" * 25)]
    assert width[0] < width[1] == width[2]


def test_a_recorder_passes_output_on_and_keeps_it():
    target = io.StringIO()
    recorder = OutputRecorder(target)
    print("One", end=" ", file=recorder)
    print("two", file=recorder, flush=True)
    assert target.getvalue() == recorder.getvalue() == "One two\n"
    assert not recorder.isatty()
