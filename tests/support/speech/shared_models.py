"""ONNX models that a process of tests loads once: Moonshine alone takes a second of processor time, for each server that listens."""

import contextlib
import hashlib

import pytest

from antiphon.speech import onnx


@contextlib.contextmanager
def shared():
    """Whoever loads a model that was loaded before gets the same session: they run in several threads at once, and keep nothing."""
    sessions = {}
    load_anew = onnx.load

    def load(model, threads=1):
        if isinstance(model, bytes):
            content = hashlib.sha256(model).digest()
        else:
            status = model.stat()
            content = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        if (content, threads) not in sessions:
            sessions[content, threads] = load_anew(model, threads)
        return sessions[content, threads]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx, "load", load)
        yield
