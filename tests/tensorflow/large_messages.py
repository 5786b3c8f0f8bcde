"""Feeds and fetches near the maximum message size of 2 GiB, and a fetch beyond it, one at a time, because each takes
gigabytes in client and server. There is no feed beyond it, because that crashes the client with any server."""
import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow.compat.v1 as tf

from session_checks import Checks, fails

tf.disable_v2_behavior()

checks = Checks()
check = checks.add

BELOW_LIMIT = int(1.9 * 2**30)
ABOVE_LIMIT = int(2.1 * 2**30)


def bytes_of_size(count):
    size = tf.placeholder_with_default(count, [])
    return tf.fill([size], tf.constant(7, tf.uint8))


@check
def feed_below_the_limit(target, _):
    fed = tf.placeholder(tf.uint8, [None])
    seen = [tf.size(fed), fed[0], fed[-1]]
    value = np.zeros([BELOW_LIMIT], np.uint8)
    value[0], value[-1] = 3, 5
    with tf.Session(target) as session:
        assert session.run(seen, {fed: value}) == [BELOW_LIMIT, 3, 5]


@check
def fetch_below_the_limit(target, _):
    made = bytes_of_size(BELOW_LIMIT)
    with tf.Session(target) as session:
        got = session.run(made)
        assert got.shape == (BELOW_LIMIT,) and got[0] == 7 and got[-1] == 7


@check
def fetch_above_the_limit(target, _):
    made = bytes_of_size(ABOVE_LIMIT)
    with tf.Session(target) as session:
        for run in (lambda: session.run(made), session.make_callable(made)):
            with fails(tf.errors.InternalError, "Protobuf is too large to be serialized"):
                run()
        assert session.run(made[0]) == 7


@check
def tensors_between_tasks(target, transport):
    for count in (BELOW_LIMIT, ABOVE_LIMIT):
        with tf.Graph().as_default():
            with tf.device("/job:ps"):
                made = bytes_of_size(count)
            with tf.device("/job:worker"):
                seen = [tf.size(made, out_type=tf.int64), made[0], made[-1]]
            with tf.Session(target) as session:
                if count == ABOVE_LIMIT and transport == "grpc":
                    with fails(tf.errors.OpError, "is over the limit of 2147483647", "Fill"):
                        session.run(seen)
                else:
                    assert session.run(seen) == [count, 7, 7], count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--transport", required=True, help="how tensors travel between the servers")
    args = parser.parse_args()
    checks.run(args.target, args.transport)


main()
