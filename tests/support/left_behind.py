"""What outlives its use and is freed by a full garbage collection only, if at all."""

import contextlib
import gc
from collections import Counter


@contextlib.contextmanager
def no_collector():
    """
    Objects are freed by counting references to them, or not at all.

    Gives what counts those of antiphon's classes that were made since and still are, but for the classes it is given.
    """

    def left(*kept):
        types = (type(each) for each in gc.get_objects())
        return Counter(each.__name__ for each in types if str(each.__module__).startswith("antiphon.") and each not in kept)

    gc.disable()
    gc.freeze()  # `gc.get_objects` gives none of what there is by now
    try:
        yield left
    finally:
        gc.unfreeze()
        gc.enable()
