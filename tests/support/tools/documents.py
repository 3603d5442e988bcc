"""Small files in the formats that `file_search` reads."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
SLIDES = "http://schemas.openxmlformats.org/presentationml/2006/main"
OFFICE_LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
LINKS = "http://schemas.openxmlformats.org/package/2006/relationships"


def archive(parts: Mapping[str, str | bytes]) -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return buffer.getvalue()


def docx(body: str, **parts: str) -> bytes:
    """A Word document with this XML in its body; `parts` are more of its parts, such as `footnotes`."""
    xml = {name: f'<w:{name} xmlns:w="{WORD}">{content}</w:{name}>' for name, content in {"document": body, **parts}.items()}
    return archive({f"word/{name}.xml": content for name, content in xml.items()})


def paragraph(text: str, style: str | None = None) -> str:
    """A paragraph of a Word document."""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{escape(text)}</w:t></w:r></w:p>"


def pptx(slides: Sequence[str], notes: Mapping[int, str] | None = None, order: Sequence[int] | None = None) -> bytes:
    """A presentation: the text of each slide, notes by the slide's number, and the order in which they are shown."""
    numbers = range(1, len(slides) + 1)

    def part(tag: str, text: str) -> str:
        return f'<p:{tag} xmlns:p="{SLIDES}" xmlns:a="{DRAWING}"><a:p><a:r><a:t>{escape(text)}</a:t></a:r></a:p></p:{tag}>'

    def links(targets: Mapping[str, str]) -> str:
        entries = "".join(f'<Relationship Id="{id}" Target="{target}"/>' for id, target in targets.items())
        return f'<Relationships xmlns="{LINKS}">{entries}</Relationships>'

    shown = "".join(f'<p:sldId r:id="rId{number}"/>' for number in order or numbers)
    parts = {
        "ppt/presentation.xml": f'<p:presentation xmlns:p="{SLIDES}" xmlns:r="{OFFICE_LINKS}">{shown}</p:presentation>',
        "ppt/_rels/presentation.xml.rels": links({f"rId{number}": f"slides/slide{number}.xml" for number in numbers}),
        **{f"ppt/slides/slide{number}.xml": part("sld", text) for number, text in enumerate(slides, 1)},
    }
    for number, text in (notes or {}).items():
        parts[f"ppt/notesSlides/notesSlide{number}.xml"] = part("notes", text)
        parts[f"ppt/slides/_rels/slide{number}.xml.rels"] = links({"rId1": f"../notesSlides/notesSlide{number}.xml"})
    return archive(parts)


def pdf(pages: Sequence[str]) -> bytes:
    """A PDF file with one line of ASCII on each page."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode())
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for index, text in enumerate(pages):
        escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        stream = f"BT /F1 12 Tf 72 720 Td ({escaped}) Tj ET".encode("ascii")
        page = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * index} 0 R /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects += [page.encode(), b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream)]
    body = bytearray(b"%PDF-1.4\n")
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(body)
    body += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    body += b"".join(b"%010d 00000 n \n" % place for place in places)
    body += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(body)
