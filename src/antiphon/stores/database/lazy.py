"""
Names of modules that load slowly and that few starts need; each module is loaded at the first use of its name.

Use a name as `lazy.upgrade`; `from … import upgrade` would load it at once. Source: PEP 562.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.stores.database.upgrade import upgrade as upgrade

_MODULES = {"upgrade": "antiphon.stores.database.upgrade"}
"""By name, the module that defines it."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)
