"""Objects that only a full garbage collection frees, or nothing at all."""

import contextlib
import gc
from collections import Counter


@contextlib.contextmanager
def no_collector():
    """
    Turn the garbage collector off, so that only reference counts free objects.

    Yields:
        A function that counts the instances of antiphon's classes that were created since and still exist, without
        those of the classes that it is given.
    """

    def left(*kept):
        types = (type(each) for each in gc.get_objects())
        return Counter(each.__name__ for each in types if str(each.__module__).startswith("antiphon.") and each not in kept)

    gc.disable()
    gc.freeze()  # `gc.get_objects` doesn't return what exists by now
    try:
        yield left
    finally:
        gc.unfreeze()
        gc.enable()
