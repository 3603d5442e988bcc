"""
A server for benchmarks, in a process of its own, which prints its address once it accepts connections.

    python bench/common/serve.py HOME FLAGS_AS_JSON
"""

import json
import sys
from pathlib import Path

from antiphon.config.load import load
from antiphon.server.processes.run import serve


def main():
    home, flags = Path(sys.argv[1]), json.loads(sys.argv[2])
    config = load(flags, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config
    serve(config, on_ready=lambda url, _is_open: print(url, flush=True))


if __name__ == "__main__":
    main()
