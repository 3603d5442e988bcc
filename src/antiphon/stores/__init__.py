"""Storage of responses, items, keys, client secrets and session records, and of recorded files."""

from antiphon.stores.base import MissingAncestor as MissingAncestor, SortOrder as SortOrder, Store as Store, UnknownCursor as UnknownCursor
