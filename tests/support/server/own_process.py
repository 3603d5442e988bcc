"""A server in a process of its own, controlled by signals."""

import contextlib
import json
import subprocess
import sys

from support.programs import forks

PROGRAM = """
import json, pathlib, sys
from antiphon.config.load import load
from antiphon.server.processes import run, supervisor
home, flags = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
config = load(flags, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config
serve = run.serve if config.server.processes == 1 else supervisor.serve
serve(config, on_ready=lambda url, _is_open: print(url, flush=True))
"""


MODELS = [
    {"name": "parrot", "engine": "scripted"},
    {"name": "short", "engine": "scripted", "pace_ms": 10, "answers": [{"lines": [{"text": "la ", "repeat": 60}]}]},
    {"name": "endless", "engine": "scripted", "pace_ms": 10, "answers": [{"lines": [{"text": "la ", "repeat": 100000}]}]},
]


@contextlib.contextmanager
def serving(home, models=MODELS, ignores=None, webhooks=(), **settings):
    """A server in a process of its own, which ignores a signal as with `nohup`: the process and its address."""
    flags = {"server.port": 0, "models": models, "webhooks": [*webhooks]} | {
        name if "." in name else f"server.{name}": value for name, value in settings.items()
    }
    command = [sys.executable, "-c", PROGRAM, str(home), json.dumps(flags)]
    more = {"ignores": ignores, "children": forks.shared_by(flags.get("server.processes", 1))}
    with forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
