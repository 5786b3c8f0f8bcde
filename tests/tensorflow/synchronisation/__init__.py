"""Scenarios of queues, readers, accumulators, barriers, staging areas and tables. Each is a function of a `Peer` that
runs once on our servers and once on TensorFlow's; the results that it records must be the same on both."""
import contextlib
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

DEADLINE = 20.0

SCENARIOS = []


def scenario(f):
    SCENARIOS.append(f)
    return f


class Peer:
    """The cluster on which a scenario runs, and the results that it has recorded."""

    def __init__(self, workers, run):
        self.workers = workers
        self.target = workers[0]
        self.run = run
        self.records = []
        self.names = 0

    def name(self, base):
        """Returns a shared name that no other run uses."""
        self.names += 1
        return f"{self.run}{base}{self.names}"

    @contextlib.contextmanager
    def session(self, worker=0):
        config = tf.ConfigProto(operation_timeout_in_ms=int(DEADLINE * 1000))
        with tf.Session(self.workers[worker], config=config) as session:
            yield session

    def record(self, label, value):
        """Records a value, or the value or failure of a call."""
        self.records.append((label, outcome(value)))

    def background(self, f):
        return Background(f)


class Background:
    """A call that runs on its own thread, because it may block."""

    def __init__(self, f):
        self.result = None
        self.thread = threading.Thread(target=self.work, args=[f], daemon=True)
        self.thread.start()

    def work(self, f):
        self.result = outcome(f)

    def is_blocked(self):
        return self.thread.is_alive()

    def join(self):
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive(), "the call still blocks"
        return Recorded(self.result)


class Recorded:
    """An outcome that `outcome` returns unchanged."""

    def __init__(self, outcome):
        self.outcome = outcome


def until(condition, deadline_s=DEADLINE):
    """Waits until a condition holds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        threading.Event().wait(0.005)


def outcome(value):
    """Converts a value, or the value or error of a call, to comparable Python values."""
    if isinstance(value, Recorded):
        return value.outcome
    if callable(value):
        try:
            value = value()
        except (tf.errors.OpError, ValueError) as error:
            return type(error).__name__, text(error)
    return plain(value)


def text(error):
    """Returns the message of an error without locations and without the lines that Python adds."""
    message = getattr(error, "message", None) or str(error)
    if message.startswith("Graph execution error:"):
        message = message.split("\nNode: ", 1)[-1].partition("\n")[2]
    lines = [line.strip() for line in message.splitlines()]
    lines = [line for line in lines if not line.startswith(("From /job", "Node: ", "Detected at"))]
    kept = [line for line in lines if line and "root error(s)" not in line]
    return kept[0].removeprefix("(0) ") if kept else ""


def type_of(f):
    """Returns the class of the error with which a call fails, or None."""
    try:
        f()
    except tf.errors.OpError as error:
        return type(error).__name__
    return None


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return [str(value.dtype), list(value.shape), value.tolist()]
    return value
