"""The scenarios that `mixed.py` runs on clusters of both implementations, with two ps and two workers.

Each module has a `build()`, which builds a graph over all four tasks and returns a function of two sessions: the session
of the tested master, and the session of the other worker as master. The function's values must be the same in each
mixture.
"""
import tensorflow.compat.v1 as tf

PS = ["/job:ps/task:0", "/job:ps/task:1"]
WORKERS = ["/job:worker/task:0", "/job:worker/task:1"]


def on(device, make):
    """Calls `make` in the scope of a device and returns its result."""
    with tf.device(device):
        return make()
