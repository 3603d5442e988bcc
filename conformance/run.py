"""
Run every client's suite in an environment of its own.

    python conformance/run.py PROGRAM MODEL

PROGRAM is the `antiphon` to start, MODEL the catalogue name of the model that answers. Environments are kept beside the program and
made again when their requirements change.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent


def environment(client: Path, folder: Path) -> Path:
    """The Python of the client's environment."""
    python = folder / client.name / "bin" / "python"
    wanted = (client / "requirements.txt").read_text()
    stamp = folder / client.name / "made-from.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"{client.name}: installing", flush=True)
        venv.create(folder / client.name, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"]
        subprocess.run([*install, client / "requirements.txt"], check=True)
        stamp.write_text(wanted)
    return python


def main(program: Path, model: str) -> int:
    """Every client's suite; 0 when all pass."""
    clients = sorted(path.parent for path in HERE.glob("*/requirements.txt"))
    failed = []
    for client in clients:
        python = environment(client, program.parent.parent / "conformance")
        environ = os.environ | {"ANTIPHON": str(program), "ANTIPHON_MODEL": model}
        command = [python, "-m", "pytest", "--quiet", "--rootdir", client, "--override-ini", "addopts=", "-p", "no:cacheprovider", client]
        print(f"{client.name}: against {model}", flush=True)
        if subprocess.run(command, env=environ, cwd=client).returncode:
            failed.append(client.name)
    print(f"conformance: {len(clients) - len(failed)} of {len(clients)} clients agree" + (f"; not {', '.join(failed)}" if failed else ""))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2]))
