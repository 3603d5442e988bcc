"""
pip, as a fork of a process that has loaded it: to load it takes most of a second, and a download of a tiny wheel a tenth of one.

`running` makes a program that takes the place of a Python that has pip.
"""

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 1 << 20

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    socket.send_fds(server, [json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
    status = server.recv(1)
sys.exit(status[0] if status else 1)
"""


@contextlib.contextmanager
def running() -> Iterator[str]:
    """The path of the program."""
    with tempfile.TemporaryDirectory(prefix="pip") as folder:  # directly there, as the path of a socket may have at most 100 characters
        program = Path(folder, "python")
        program.write_text(CLIENT.format(python=sys.executable, path=f"{folder}/socket"))
        program.chmod(0o755)
        with subprocess.Popen([sys.executable, __file__, folder], stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None and server.stdout.readline() == b"ready\n"
                yield str(program)
            finally:
                server.terminate()


def main(folder: str) -> None:
    pip = importlib.import_module("pip._internal.cli.main").main  # the process of the tests does not load it

    # All that a download loads is loaded by one, of a package that is not there.
    pip(["download", "-qqq", "--no-index", "--find-links", folder, "--dest", folder, "nowhere==1"])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/socket")
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        child = os.fork()
        if not child:
            break
        connection.close()
        os.waitpid(child, 0)
    request, descriptors, *_ = socket.recv_fds(connection, MOST_BYTES, 3)
    (option, module, *arguments), cwd, environ = json.loads(request)
    assert (option, module) == ("-m", "pip")
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None  # as the environment says
    status = pip(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(bytes([status]))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
