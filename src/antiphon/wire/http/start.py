"""What a server says of itself while it starts."""

from typing import Literal

from msgspec import field

from antiphon.wire.codec.types import Wire

StartReason = Literal["fetching", "loading", "failed"]


class WeightsStatus(Wire, kw_only=True):
    """
    How far the weights of a model are.

    Attributes:
        name: of the model; null where a key is needed.
        purpose: `answers`, `hearing`, `voice` or `search`.
        bytes_per_s: null while it is not known, or nothing is fetched.
        eta_s: seconds until they are there; null likewise.
    """

    name: str | None
    purpose: str = field(name="for")
    state: StartReason
    bytes: int
    bytes_total: int
    bytes_per_s: int | None
    eta_s: float | None


class StartStatus(Wire, kw_only=True):
    """
    Why a server is not ready yet.

    Attributes:
        reason: `failed` where weights could not be fetched.
        message: why they could not be.
        weights: those that have to be fetched, in the order in which that begins.
    """

    reason: StartReason
    message: str | None = None
    weights: list[WeightsStatus]
