"""The headers of a request, decoded once."""

from collections.abc import Iterable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

_HEADERS_SCOPE_KEY = "antiphon.headers"


class IndexedHeaders(Headers):
    """Headers in a table, by their names in lower case: starlette's own look through a list for each name."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        # Of a field that came twice, the first value counts, as with starlette.
        self._values = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(self._list)}
        # The table's own: every request asks it a dozen times.
        self.get = self._values.get  # type: ignore[method-assign]

    def __getitem__(self, key: str) -> str:
        return self._values[key.lower()]

    def __contains__(self, key: Any) -> bool:
        return key.lower() in self._values

    def is_disjoint(self, names: Iterable[str]) -> bool:
        """Whether there is no header with one of these names."""
        return self._values.keys().isdisjoint(names)


def request_headers(scope: Scope) -> IndexedHeaders:
    """The headers of a request; ask `get` for names in lower case."""
    headers: IndexedHeaders | None = scope.get(_HEADERS_SCOPE_KEY)
    if headers is None:
        headers = scope[_HEADERS_SCOPE_KEY] = IndexedHeaders(scope)
    return headers
