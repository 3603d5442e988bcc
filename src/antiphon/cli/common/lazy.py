"""
Modules that take up to a second to load, or need an optional package, and that only some runs of a command use.

`lazy.run` imports `antiphon.server.processes.run` when it is first used (PEP 562), so help and short commands stay
fast.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.engines.local import llama_server as llama_server
    from antiphon.runtime import prompts as prompts, registry as registry, resolve_request as resolve_request, service as service
    from antiphon.runtime.core import encrypted_content as encrypted_content, metrics as metrics
    from antiphon.runtime.routing import features as features, router as router
    from antiphon.server.processes import run as run, supervisor as supervisor
    from antiphon.server.responses import routing as routing
    from antiphon.server.tls import addresses as addresses, certificates as certificates, names as names
    from antiphon.server.transport import logs as logs
    from antiphon.speech.audio_files import decode as decode
    from antiphon.speech.dsp import resample as resample
    from antiphon.stores.database import database as database
    from antiphon.stores.sql import store as store
    from antiphon.wire.responses import request as request
else:
    MODULES = {
        "llama_server": "antiphon.engines.local.llama_server",
        "prompts": "antiphon.runtime.prompts",
        "service": "antiphon.runtime.service",
        "registry": "antiphon.runtime.registry",
        "metrics": "antiphon.runtime.core.metrics",
        "resolve_request": "antiphon.runtime.resolve_request",
        "router": "antiphon.runtime.routing.router",
        "request": "antiphon.wire.responses.request",
        "routing": "antiphon.server.responses.routing",
        "features": "antiphon.runtime.routing.features",
        "encrypted_content": "antiphon.runtime.core.encrypted_content",
        "run": "antiphon.server.processes.run",
        "supervisor": "antiphon.server.processes.supervisor",
        "addresses": "antiphon.server.tls.addresses",
        "certificates": "antiphon.server.tls.certificates",
        "names": "antiphon.server.tls.names",
        "logs": "antiphon.server.transport.logs",
        "decode": "antiphon.speech.audio_files.decode",
        "resample": "antiphon.speech.dsp.resample",
        "database": "antiphon.stores.database.database",
        "store": "antiphon.stores.sql.store",
    }

    def __getattr__(name):
        if name not in MODULES:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        return importlib.import_module(MODULES[name])
