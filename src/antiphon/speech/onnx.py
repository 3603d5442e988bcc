"""Loads and runs ONNX models: on one thread each, which sleeps while there is nothing to do."""

from collections.abc import Callable
from pathlib import Path

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from antiphon.errors import ServerError, shorten

ERRORS: tuple[type[Exception], ...] = tuple(
    kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception)
)
"""What loading and running raise; they have no common base but `Exception`."""
_LOAD_ERRORS: tuple[type[Exception], ...] = (*ERRORS, ValueError)


def load(model: Path | bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """
    A model, ready to run from any thread; takes a while.

    Args:
        threads: per run; more than one helps only if a core is free.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # To plan which tensors may share memory takes the square of their number: two thirds of the time to load a Piper voice (3.8 s of
    # processor time, and 1.5 without). What a tensor held is given back after its last use anyway, so memory and speed stay the same.
    options.enable_mem_reuse = False
    # Threads that spin while they wait take the core away from every other model.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Without VNNI instructions, sums of 8-bit products saturate: Smart-Turn was wrong by up to 0.4 there.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def load_required_model(path: Path, name: str, rewrite: Callable[[bytes], bytes] | None = None) -> onnxruntime.InferenceSession:
    """
    As `load`, with errors for the operator.

    Args:
        name: of the model in the catalogue.
        rewrite: makes of the file what is loaded; raises `ValueError` for a file that it does not know.

    Raises:
        ServerError: the file is missing, or can't be loaded.
    """
    if not path.is_file():
        raise ServerError(
            f"The model '{name}' is not installed: {path} is missing. Get it with `antiphon models pull {name}`.", code="model_not_found"
        )
    try:
        return load(path if rewrite is None else rewrite(path.read_bytes()))
    except _LOAD_ERRORS as error:
        raise ServerError(f"The model '{name}' in {path} can't be loaded: {shorten(error, 300)}", code="weights_unavailable") from None


def cancellable_run() -> tuple[onnxruntime.RunOptions, Callable[[], None]]:
    """Options for one run, and a function that stops it from another thread, at the next node of its graph."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4  # a run that is stopped is not logged as an error
    return options, lambda: setattr(options, "terminate", True)
