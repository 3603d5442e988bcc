"""The citations in a model's text: its marks become annotations at the right characters, while the text is streamed."""

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from antiphon.engine_api.events import AnnotationAdded, TextDelta
from antiphon.protocols.evidence import Excerpt, find_evidence
from antiphon.tool_api import Citation
from antiphon.wire.codec.types import JsonDict

MAX_CITATIONS = 4096
"""The most things that a response can cite; of more, the newest count."""

MAX_SOURCE_CHARS = 20_000
"""What is remembered of one page that was read several times."""


class CitationWriter:
    """
    Replaces the markers in the text of one response. A tail that may be the beginning of a marker is held back until it
    is known to be one or not.

    Responses: `index` of a file citation is where the marker was, in characters of the part's text; `start_index` and
    `end_index` (exclusive) of the others are the range of the text that stands for them.

    Args:
        infers: whether an answer of a model that writes no markers is cited by its words; see `evidence`.
    """

    def __init__(self, response_id: str, *, infers: bool = True) -> None:
        self._response_id = response_id
        self._citations: dict[str, Citation] = {}
        self._pattern: re.Pattern[str] | None = None
        self._tail = ""
        self._length = 0
        self._infers = infers
        self._text: list[str] = []  # of the open part

    @property
    def is_active(self) -> bool:
        """Whether there is something to cite."""
        return self._pattern is not None

    def learn(self, citations: Iterable[Citation]) -> None:
        """What may be cited from now on; of two with the same marker the later counts."""
        for citation in citations:
            former = self._citations.pop(citation.marker, None)
            if former is not None and former.evidence != citation.evidence:
                evidence = f"{citation.evidence}\n{former.evidence}"[:MAX_SOURCE_CHARS]
                citation = replace(citation, evidence=evidence)
            self._citations[citation.marker] = citation
        while len(self._citations) > MAX_CITATIONS:
            del self._citations[next(iter(self._citations))]
        if self._citations:
            # The longest first: one marker may begin as another does.
            self._pattern = re.compile("|".join(map(re.escape, sorted(self._citations, key=len, reverse=True))))

    def begin_part(self) -> None:
        """The next text begins a part."""
        self._length = 0
        self._text.clear()

    def write(self, delta: TextDelta) -> Iterator[TextDelta | AnnotationAdded]:
        """The text with its annotations, without a tail that is held back."""
        text = self._tail + delta.text
        end = self._safe_end(text)
        if end == len(text) and not self._tail and not self._finds(text):
            self._length += len(text)
            self._text.append(text)
            yield delta  # as nearly always; it keeps its log probabilities
            return
        self._tail = text[end:]
        yield from self._replace(text[:end])

    def flush(self) -> Iterator[TextDelta | AnnotationAdded]:
        """The tail, as nothing follows it."""
        tail, self._tail = self._tail, ""
        yield from self._replace(tail)

    def replace_text(self, text: str) -> None:
        """The text of the open part is another one."""
        self._text = [text]

    def infer(self) -> Iterator[AnnotationAdded]:
        """What the open part cites by its words, now that it is complete; nothing if there was a marker in the response."""
        if not self._infers:
            return
        citations = [citation for citation in reversed(self._citations.values()) if citation.evidence]
        excerpts = [Excerpt(_source(citation), citation.evidence) for citation in citations]
        for evidence in find_evidence("".join(self._text), excerpts):
            citation = citations[evidence.excerpt]
            is_point = citation.kind == "point"
            places = {"index": evidence.end} if is_point else {"start_index": evidence.start, "end_index": evidence.end}
            yield AnnotationAdded(self._response_id, {**citation.annotation, **places})

    def _finds(self, text: str) -> bool:
        return self._pattern is not None and self._pattern.search(text) is not None

    def _safe_end(self, text: str) -> int:
        """Up to where the text can be told from a marker, whatever follows."""
        for start in range(max(0, len(text) - max(map(len, self._citations), default=0)), len(text)):
            rest = text[start:]
            if any(len(marker) > len(rest) and marker.startswith(rest) for marker in self._citations):
                return start
        return len(text)

    def _replace(self, text: str) -> Iterator[TextDelta | AnnotationAdded]:
        before = 0
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            citation = self._citations[match[0]]
            self._infers = False
            plain, before = text[before : match.start()], match.end()
            replacement = match[0] if citation.replacement is None else citation.replacement
            start = self._length + len(plain)
            if plain + replacement:
                self._length = start + len(replacement)
                self._text.append(plain + replacement)
                yield TextDelta(self._response_id, plain + replacement)
            places = {"index": start} if citation.kind == "point" else {"start_index": start, "end_index": start + len(replacement)}
            annotation: JsonDict = {**citation.annotation, **places}
            yield AnnotationAdded(self._response_id, annotation)
        if before < len(text):
            self._length += len(text) - before
            self._text.append(text[before:])
            yield TextDelta(self._response_id, text[before:])


def _source(citation: Citation) -> str:
    """The file or page of a citation, of which there may be several excerpts."""
    return str(citation.annotation.get("file_id") or citation.annotation.get("url") or citation.marker)
