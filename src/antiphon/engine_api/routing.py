"""Why a request was given to a model."""

from msgspec import Struct


class RouteDecision(Struct, frozen=True, kw_only=True):
    """
    The model that was chosen for a request which left the choice to the server.

    Attributes:
        model: its name.
        category: of the request, such as `reasoning`; `general` where no rule and no example fits.
        source: what decided.
        reasoning: why, in a few words.
    """

    model: str
    category: str = "general"
    source: str = "router"
    reasoning: str = ""
