"""What of an accepted request the model does not get."""

from msgspec import Struct, field


class Omissions(Struct):
    """
    What of an accepted request the model does not get.

    Attributes:
        tools: the types of omitted tools.
        grammars: the names of custom tools whose grammar is described to the model but not enforced.
        items: the types of omitted items.
    """

    tools: list[str] = field(default_factory=list)
    grammars: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
