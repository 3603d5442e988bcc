"""The bases of this protocol's objects: for most of their fields null says no more than absence does."""

from antiphon.wire.codec.types import Tagged, Wire


class RealtimeObject(Wire, kw_only=True):
    """An object."""

    null_is_absent = True


class RealtimeTagged(Tagged, kw_only=True):
    """An object with a `type`."""

    null_is_absent = True
