"""
The fast path of text: an engine may write text where a session's client writes its events, without an event for each.

Nearly every event of a stream differs from the one before it in its text alone, on the way in as on the way out. Once an
engine has seen that, it asks for a `TextSink`, and gives it the texts as they come. A wrapper between the two that
must see each event just returns nothing from its `Deliver`.
"""

from typing import Protocol

from msgspec import Struct

from antiphon.engine_api import events


class TextSeries(Struct, frozen=True):
    """
    Events of one response that differ in their text alone.

    Attributes:
        id: of the response.
        around: what stands before and behind the text in the data of a `RelayData`; None for a `TextDelta`.
    """

    id: str
    around: tuple[bytes, bytes] | None = None


class TextSink(Protocol):
    """Where the texts of a series are written. It closes as soon as anything else happens to their session."""

    def write(self, texts: list[str], strings: list[bytes]) -> bool:
        """
        Take texts that came together, as if their events had been delivered.

        Args:
            texts: none of them empty.
            strings: the same as JSON, without the quotes: of a relay as they came, else as `wire.codec` writes them.

        Returns:
            False if it is closed, and took nothing: deliver the events.
        """


class TextRoute(Protocol):
    """The way from an engine to its session's client."""

    def open_text(self, series: TextSeries) -> TextSink | None:
        """
        A sink for the text that follows; None where there is none now. Ask only right after a delivery that returned
        this route, and not within it.
        """


def sample_event(series: TextSeries, text: str) -> events.TextDelta | events.RelayData:
    """An event of a series, with plain ASCII text."""
    if series.around is None:
        return events.TextDelta(series.id, text)
    before, behind = series.around
    return events.RelayData(series.id, before + text.encode() + behind)
