"""How models of the ONNX format are run: on one thread each, which sleeps when there is nothing to do."""

from collections.abc import Callable
from pathlib import Path

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from antiphon.errors import ServerError, shorten

ERRORS: tuple[type[Exception], ...] = tuple(
    kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception)
)
"""What loading and running raise; they have nothing in common but that they are exceptions."""


def load(model: Path | bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """
    The model in that file, or in those bytes, ready to run from any thread; takes a while.

    Args:
        threads: that one run is divided among; more than one helps only where a core is free.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Threads that spin while they wait take the core away from every other model.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def load_required_model(path: Path, name: str) -> onnxruntime.InferenceSession:
    """
    The model in that file, as `load` gives it.

    Args:
        name: of the model in the catalogue.

    Raises:
        ServerError: it is not there, or is not what it should be.
    """
    if not path.is_file():
        raise ServerError(
            f"The model '{name}' is not here: there is no {path}. `antiphon models pull {name}` gets it.", code="model_not_found"
        )
    try:
        return load(path)
    except ERRORS as error:
        raise ServerError(f"The model '{name}' in {path} can't be loaded: {shorten(error, 300)}", code="weights_unavailable") from None


def cancellable_run() -> tuple[onnxruntime.RunOptions, Callable[[], None]]:
    """Options for one run, and what stops that run from another thread, within a node of its graph."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4  # a run that is stopped is no error
    return options, lambda: setattr(options, "terminate", True)
