"""Scenarios of queues, readers, accumulators, barriers, staging areas and tables. Each is a function of a `Peer`, run
once on our servers and once on TensorFlow's; what it says to the peer's `say` must be the same on both."""
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
    """A cluster, as a scenario sees it."""

    def __init__(self, workers, run):
        self.workers = workers
        self.target = workers[0]
        self.run = run
        self.said = []
        self.names = 0

    def name(self, base):
        """A shared name that no other run uses."""
        self.names += 1
        return f"{self.run}{base}{self.names}"

    @contextlib.contextmanager
    def session(self, worker=0):
        config = tf.ConfigProto(operation_timeout_in_ms=int(DEADLINE * 1000))
        with tf.Session(self.workers[worker], config=config) as session:
            yield session

    def say(self, label, value):
        """Records what a call gave, or how it failed."""
        self.said.append((label, outcome(value)))

    def background(self, f):
        return Background(f)


class Background:
    """A call on a thread of its own: for what blocks."""

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
        return Told(self.result)


class Told:
    """An outcome that is one already."""

    def __init__(self, outcome):
        self.outcome = outcome


def until(condition, deadline_s=DEADLINE):
    """Waits until a condition holds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "the condition does not come true"
        threading.Event().wait(0.005)


def outcome(value):
    if isinstance(value, Told):
        return value.outcome
    if callable(value):
        try:
            value = value()
        except (tf.errors.OpError, ValueError) as error:
            return type(error).__name__, text(error)
    return plain(value)


def text(error):
    """The failure itself: without places, and without what Python adds before it."""
    message = getattr(error, "message", None) or str(error)
    if message.startswith("Graph execution error:"):
        message = message.split("\nNode: ", 1)[-1].partition("\n")[2]
    lines = [line.strip() for line in message.splitlines()]
    lines = [line for line in lines if not line.startswith(("From /job", "Node: ", "Detected at"))]
    kept = [line for line in lines if line and "root error(s)" not in line]
    return kept[0].removeprefix("(0) ") if kept else ""


def type_of(f):
    """How a call fails, if it does."""
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
