"""A registry of checks that run in order, each with its own graph, and a context manager that expects errors."""
import tensorflow.compat.v1 as tf


class Checks:
    """A list of checks, which prints `ok NAME` or `FAILED NAME` for each."""

    def __init__(self):
        self._checks = []

    def add(self, f):
        self._checks.append(f)
        return f

    def run(self, *args):
        for f in self._checks:
            tf.reset_default_graph()
            try:
                f(*args)
            except BaseException:
                print(f"FAILED {f.__name__}", flush=True)
                raise
            print(f"ok {f.__name__}", flush=True)


class fails:
    """A context manager that expects `error` with all of `parts` in its message; `.value` is the error."""

    def __init__(self, error, *parts):
        self._error, self._parts = error, parts
        self.value = None

    def __enter__(self):
        return self

    def __exit__(self, kind, value, _):
        assert kind is not None, f"{self._error.__name__} was expected, nothing failed"
        assert issubclass(kind, self._error), f"{self._error.__name__} was expected, got {kind.__name__}: {value}"
        for part in self._parts:
            assert part in str(value), f"'{part}' is not in: {value}"
        self.value = value
        return True
