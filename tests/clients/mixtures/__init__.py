"""What `mixed.py` runs on clusters of both implementations: two ps and two workers.

Each module has a `build()`, which makes a graph over all four tasks and returns a function of two sessions: that of the
master in question, and that of the other worker as master. What the function returns must be the same in each mixture.
"""
import tensorflow.compat.v1 as tf

PS = ["/job:ps/task:0", "/job:ps/task:1"]
WORKERS = ["/job:worker/task:0", "/job:worker/task:1"]


def on(device, make):
    """What `make` gives, on a device."""
    with tf.device(device):
        return make()
