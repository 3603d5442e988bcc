"""Files of all formats as text, and files that are none."""

import asyncio
import codecs
import contextlib
import os
import random
import re
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from antiphon.tools.file_search.base import UnreadableFileError
from antiphon.tools.file_search.office import MAX_XML_BYTES
from antiphon.tools.file_search.parse_process import read
from antiphon.tools.file_search.parsing import ParseLimits, Parsers
from support.tools import documents
from support.tools.documents import docx, paragraph, pdf, pptx

PAGE = b"""<!DOCTYPE html><html><head><title>Tides</title><style>p {color: red}</style></head><body>
<h1>The <b>sea</b></h1><script>alert(1)</script>
<p>It rises<br>and falls.</p>
<p hidden>Not seen</p><p style="display: none">Nor this</p>
<ul><li>high<li>low</ul><table><tr><th>Time<th>Height<tr><td>06:12<td>4 m</table>
<pre>  a\n    b</pre>End &amp; more<img alt="A wave"></body></html>"""

FORMATS = {
    "pdf": pdf(["First page", "Second page"]),
    "docx": docx(paragraph("Hello")),
    "pptx": pptx(["One"]),
    "html": PAGE,
    "text": "Grüße".encode(),
}


def parse(content, filename, limits=None):
    async def scenario():
        return await Parsers(limits).parse(content, filename)

    return asyncio.run(asyncio.wait_for(scenario(), 120))


def refusal(content, filename, limits=None):
    with pytest.raises(UnreadableFileError) as caught:
        parse(content, filename, limits)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(
    "content",
    [
        "Ünïcode, 北京".encode(),
        codecs.BOM_UTF8 + "Ünïcode, 北京".encode(),
        "Ünïcode, 北京".encode("utf-16"),
        codecs.BOM_UTF16_BE + "Ünïcode, 北京".encode("utf-16-be"),
        "Ünïcode, 北京".encode("utf-16-le"),
    ],
)
def test_text_is_read_in_utf8_and_utf16(content):
    assert parse(content, "note.txt") == "Ünïcode, 北京"


OTHERS = {"a.png": b"\x89PNG\r\n\x1a\n\0\0\0\r", "a.xlsx": b"PK\x03\x04 sheet", "a.doc": b"\xd0\xcf\x11\xe0\0\0"}


@pytest.mark.parametrize("name", ["a.md", "a.py", "a.json", "a.csv", "a.tex", "A.TXT", "Makefile", "a.unheard"])
def test_all_kinds_of_text_are_read_as_they_are(name):
    assert parse(b"a,b\r\n1,2\r\n", name) == "a,b\n1,2"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_large_text_is_read_too(encoding):
    text = "Zwölf Boxkämpfer jagen Eva.\n" * 20_000
    assert parse(text.encode(encoding), "a") == text.strip()


def test_text_that_cannot_be_decoded_is_invalid():
    assert refusal(b"caf\xe9", "a.txt") == ("invalid_file", "The file is no text in UTF-8, UTF-16 or ASCII.")


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other_types_are_not_supported(name):
    code, message = refusal(OTHERS[name], name)
    assert code == "unsupported_file"
    assert f"'.{name[2:]}'" in message


@pytest.mark.parametrize("name", ["a.txt", "a.pdf", "a.docx", "a", "a.png"])
def test_an_empty_file_is_invalid(name):
    assert refusal(b"", name) == ("invalid_file", "The file is empty.")


def test_a_file_without_text_is_invalid():
    assert refusal(b" \n\n ", "a.txt") == ("invalid_file", "There is no text in the file.")


def test_a_file_beyond_the_limit_is_not_read():
    assert refusal(b"x" * 101, "a.txt", ParseLimits(file_bytes=100)) == ("invalid_file", "The file has 101 bytes, and the limit is 100.")


def test_a_pdf_is_read_page_by_page():
    assert parse(FORMATS["pdf"], "a.pdf") == "First page\n\nSecond page"


def test_a_format_is_known_by_its_first_bytes_too():
    assert read("pdf", FORMATS["pdf"]) == parse(FORMATS["pdf"], "download")


def test_a_page_is_read_as_its_reader_sees_it():
    assert parse(PAGE, "a.html") == (
        "Tides\n\n# The sea\n\nIt rises\nand falls.\n\n- high\n- low\n\nTime | Height\n06:12 | 4 m\n\n  a\n    b\n\nEnd & moreA wave"
    )


def test_a_word_document_is_read_with_headings_tables_and_notes():
    row = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("Name", "Age"))
    deleted = "<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:r><w:t>kept</w:t><w:br/><w:t>here</w:t></w:r></w:p>"
    body = paragraph("Title", "Heading2") + paragraph("Text & more") + f"<w:tbl><w:tr>{row}</w:tr></w:tbl>" + deleted
    assert read("docx", docx(body, footnotes=paragraph("A note."))) == "## Title\nText & more\nName | Age\nkept\nhere\n\nA note."


def test_slides_are_read_in_the_order_in_which_they_are_shown():
    content = pptx(["One", "Two", "Three"], notes={2: "Say this."}, order=[3, 1, 2])
    assert read("pptx", content) == "Slide 1\nThree\n\nSlide 2\nOne\n\nSlide 3\nTwo\nSay this."


def test_a_pdf_with_a_password_says_so():
    lock = b"<< /Filter /Standard /V 1 /R 2 /P -4 /O (%s) /U (%s) >>" % (b"o" * 32, b"u" * 32)
    content = pdf(["secret"]).replace(b"/Root 1 0 R", b"/Root 1 0 R /ID [(a) (a)] /Encrypt " + lock)
    assert refusal(content, "a.pdf") == ("invalid_file", "The PDF file can't be read without its password.")


def test_a_pdf_whose_page_unpacks_to_too_much_harms_nobody():
    packed = zlib.compress(b"(a) Tj " * 25_000_000, 1)
    stream = b"<< /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream" % (len(packed), packed)
    content = re.sub(rb"<< /Length \d+ >>\nstream.*?endstream", lambda _: stream, pdf(["x"]), flags=re.DOTALL)
    assert refusal(content, "a.pdf", ParseLimits(memory_bytes=128 << 20))[0] == "invalid_file"


@pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.pptx"])
def test_a_file_that_is_not_what_its_name_says_is_invalid(name):
    assert refusal(b"neither this nor that", name)[0] == "invalid_file"


@pytest.mark.parametrize(
    "declaration", ['<!DOCTYPE a [<!ENTITY x "yyyyyyyyyy"><!ENTITY z "&x;&x;">]>', '<!DOCTYPE a SYSTEM "file:///etc/hostname">']
)
def test_entities_are_not_read(declaration):
    content = documents.archive({"word/document.xml": f"{declaration}<a><p><t>&z;</t></p></a>"})
    with pytest.raises(UnreadableFileError, match="not as Office writes it"):
        read("docx", content)


def test_an_archive_that_unpacks_to_too_much_is_not_read():
    content = documents.archive({"word/document.xml": b"<a>" + b" " * MAX_XML_BYTES})
    assert len(content) < 300_000
    code, message = refusal(content, "a.docx")
    assert (code, message) == ("invalid_file", "The file unpacks to more than 200000000 bytes, the limit.")


def test_a_reader_that_needs_too_much_memory_ends():
    content = documents.archive({"word/document.xml": b"<a>" * 3_000_000})
    code, message = refusal(content, "a.docx", ParseLimits(memory_bytes=100 << 20))
    assert (code, message) == ("invalid_file", "The file takes too much memory to be read.")


def test_a_reader_that_computes_too_long_ends():
    code, message = refusal(b"<div>" * 100_000, "a.html", ParseLimits(cpu_s=1))
    assert (code, message) == ("invalid_file", "The file takes too much time to be read.")


def test_a_reader_that_takes_too_long_is_killed():
    code, message = refusal(b"<div>" * 100_000, "a.html", ParseLimits(wall_s=0.3))
    assert (code, message) == ("invalid_file", "The file takes more than 0.3 seconds to be read.")


def test_a_reader_can_open_no_file_and_no_socket(tmp_path):
    """The same limits as the process sets, in a process of this test."""
    script = tmp_path / "limits.py"
    script.write_text(
        "import os, socket, sys\n"
        "from antiphon.tools.file_search.parse_process import ParseTask, limit_process\n"
        "limit_process(ParseTask(format='text', size_bytes=0, memory_bytes=1 << 30, cpu_s=5))\n"
        "def fails(call):\n"
        "    try: call()\n"
        "    except OSError as error: return True\n"
        "calls = (lambda: open('/etc/hostname'), lambda: socket.socket(), os.pipe, lambda: os.dup(1), lambda: os.listdir('/'))\n"
        "os._exit(0 if all([fails(call) for call in calls]) else 1)\n"
    )

    async def run():
        process = await asyncio.create_subprocess_exec(sys.executable, str(script))
        return await process.wait()

    assert asyncio.run(run()) == 0


def reader_environments():
    """Of the processes that read files for this one."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    with contextlib.suppress(OSError):
        return [
            Path(f"/proc/{pid}/environ").read_bytes() for pid in children if b"parse_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
    return []


def test_a_reader_has_none_of_the_servers_secrets(monkeypatch):
    monkeypatch.setenv("ANTIPHON_SECRET", "s3cr3t")

    async def scenario():
        parsing = asyncio.create_task(Parsers().parse(b"<div>" * 100_000, "a.html"))  # noqa: TID251 - cancelled below
        while not any(environments := reader_environments()):  # noqa: ASYNC110 - the process tells nobody that it is there
            await asyncio.sleep(0.005)
        parsing.cancel()
        await asyncio.wait([parsing])
        return environments

    assert b"s3cr3t" not in b"".join(asyncio.run(asyncio.wait_for(scenario(), 60)))


def test_several_files_are_read_at_once_and_a_cancelled_one_stops():
    async def scenario():
        parsers = Parsers(ParseLimits(processes=2))
        hanging = asyncio.Event()

        async def hang():
            try:
                await parsers.parse(b"<div>" * 100_000, "a.html")
            except asyncio.CancelledError:
                hanging.set()
                raise

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(hang())
            texts = {await parsers.parse(FORMATS["html"], f"{number}.html") for number in range(2)}
            task.cancel()
        return hanging.is_set(), len(texts)

    assert asyncio.run(asyncio.wait_for(scenario(), 120)) == (True, 1)


@given(st.binary(max_size=200), st.sampled_from(["pdf", "docx", "pptx", "html", "text"]))
def test_noise_is_text_or_refused(content, format):
    try:
        assert read(format, content)
    except UnreadableFileError as error:
        assert error.code == "invalid_file"


@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 2**32))
def test_damaged_files_are_text_or_refused(format, seed):
    dice = random.Random(seed)
    content = bytearray(FORMATS[format])
    for _ in range(dice.randint(1, 8)):
        begin = dice.randrange(len(content))
        match dice.randrange(3):
            case 0:
                content[begin] = dice.randrange(256)
            case 1:
                del content[begin : begin + dice.randrange(1, 20)]
            case _:
                content[begin:begin] = content[: dice.randrange(1, 60)]
        content = content or bytearray(b" ")
    try:
        assert read(format, bytes(content))
    except UnreadableFileError as error:
        assert error.code == "invalid_file"


@given(st.text(max_size=300))
def test_any_text_comes_back_without_what_nobody_sees(text):
    shown = [char for char in text if char.isprintable() and not char.isspace() and char != "\ufeff"]
    try:
        result = parse(text.encode("utf-8", "ignore"), "a.txt")
    except UnreadableFileError:
        return
    assert [char for char in result if char.isprintable() and not char.isspace() and char != "\ufeff"] == shown
