"""Random programs of nested branches, loops and function calls, with their first and second gradients, give the same
values on a server as in a TensorFlow session in this process, for every value of their predicates.

    python random_control_flow.py --target grpc://localhost:2222 [--count 20] [--seed 1]

A program is drawn from its seed alone: `--count 1 --seed N` repeats one. Half of the programs use TensorFlow's control
flow of the first version (Switch, Merge, Enter, …), half that of the second (`If`, `While`).
"""
import argparse
import contextlib
import itertools
import random
import time

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_util

tf.disable_v2_behavior()

TASKS = 2
PREDICATES = 2
# The fed number of iterations of a loop.
LENGTHS = (0, 1, 3)
MAX_DEPTH = 3
DEADLINE_MS = 30000


class Program:
    """A graph of scalars: a result, and its gradients with respect to two inputs."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.is_v2 = self.random.random() < 0.5
        self.spreads = self.random.random() < 0.5
        # The structure of the program as text, for reports.
        self.text = ""

    def build(self):
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = self.is_v2
        self.predicates = [tf.placeholder(tf.bool, [], name=f"p{i}") for i in range(PREDICATES)]
        self.length = tf.placeholder(tf.int32, [], name="n")
        inputs = [tf.constant(1.25, name="x"), tf.constant(-0.75, name="y")]
        result = self.value(list(inputs), 0)
        firsts = self.gradients(result, inputs)
        seconds = [g for first in firsts for g in self.gradients(first, inputs)]
        return [result, *firsts, *seconds]

    def gradients(self, value, inputs):
        """Returns the gradients that TensorFlow can build; it has no second ones of loops of the first version."""
        # The stacks of a gradient of the first version are on the devices of the loop.
        with self.device() if self.is_v2 else contextlib.nullcontext():
            try:
                found = tf.gradients(value, inputs)
            except (NotImplementedError, TypeError, AttributeError, ValueError, LookupError):
                return []
        # A gradient may be a node of a branch, which has no value when the branch is not taken.
        return [gradient for gradient in found if gradient is not None and gradient.graph.is_fetchable(gradient)]

    def device(self):
        if not self.spreads:
            return contextlib.nullcontext()
        return tf.device(f"/job:worker/task:{self.random.randrange(TASKS)}")

    def value(self, known, depth):
        """Returns a value that is computed from some of the known ones."""
        leaf, inner = [self.known, self.constant], [self.branch, self.loop, self.call]
        if depth == MAX_DEPTH:
            return self.random.choice([*leaf, self.sum])(known, depth)
        return self.random.choice([self.product, self.sum, self.bounded, *inner, *inner] + (leaf if depth else []))(known, depth)

    def known(self, known, _depth):
        self.text += "v"
        return self.random.choice(known)

    def constant(self, _known, _depth):
        self.text += "c"
        return tf.constant(self.random.choice([0.5, -1.5, 2.0]))

    def sum(self, known, depth):
        self.text += "+("
        with self.device():
            total = self.value(known, min(depth + 1, MAX_DEPTH)) + self.random.choice(known) if depth < MAX_DEPTH \
                else self.random.choice(known) + 0.25
        self.text += ")"
        return total

    def product(self, known, depth):
        self.text += "*("
        with self.device():
            product = self.value(known, depth + 1) * self.random.choice(known) * 0.5
        self.text += ")"
        return product

    def bounded(self, known, depth):
        self.text += "tanh("
        with self.device():
            bounded = tf.tanh(self.value(known, depth + 1))
        self.text += ")"
        return bounded

    def condition(self, known):
        """Returns a predicate: a fed one, or a comparison of a known value."""
        if self.random.random() < 0.7:
            number = self.random.randrange(PREDICATES)
            self.text += f"p{number}"
            return self.predicates[number]
        self.text += "v>0"
        return self.random.choice(known) > 0.0

    def branch(self, known, depth):
        self.text += "if("
        condition = self.condition(known)
        self.text += ", "
        branches = []
        for _ in range(2):
            # TensorFlow may trace a branch more than once, and must draw the same each time.
            branches.append(self.repeatable(lambda known=known: self.value(known, depth + 1)))
        with self.device():
            result = tf.cond(condition, *branches)
        self.text += ")"
        return result

    def loop(self, known, depth):
        self.text += "while("
        length = self.random.choice([self.length, 2])
        start = [self.random.choice(known), self.random.choice(known)]
        parallel = self.random.choice([1, 10])
        draw = self.repeatable(lambda inner: [self.value(inner, depth + 1), self.value(inner, depth + 1)])

        def body(i, a, b):
            inner = [*known, a, b, tf.cast(i, tf.float32)]
            return [i + 1, *draw(inner)]

        with self.device():
            outputs = tf.while_loop(lambda i, *_: i < length, body, [0, *start], parallel_iterations=parallel)
        self.text += ")"
        return outputs[1] + outputs[2]

    def call(self, known, depth):
        self.text += "call("
        draw = self.repeatable(lambda inner: self.value(inner, depth + 1))
        arguments = [self.random.choice(known), self.random.choice(known)]
        function = tf.function(lambda a, b: draw([a, b]), autograph=False)
        result = function(*arguments)
        self.text += ")"
        return result

    def repeatable(self, draw):
        """Returns a function that draws the same whenever it is called."""
        seed = self.random.random()

        def repeat(*arguments):
            outer, self.random = self.random, random.Random(seed)
            try:
                return tf.convert_to_tensor(value) if not isinstance(value := draw(*arguments), list) else value
            finally:
                self.random = outer

        return repeat

    def feeds(self):
        for values in itertools.product([False, True], repeat=PREDICATES):
            for length in LENGTHS:
                yield {**dict(zip(self.predicates, values)), self.length: length}


def run(session, fetches, feeds):
    return session.run(fetches, feeds, options=tf.RunOptions(timeout_in_ms=DEADLINE_MS))


def without_devices(graph_def):
    """Removes the names of tasks, which a session in this process does not have."""
    for node in itertools.chain(graph_def.node, *(function.node_def for function in graph_def.library.function)):
        node.device = ""
    return graph_def


def unoptimized():
    """Returns the configuration of a session without optimizers: TensorFlow's function optimizer gives wrong values, or
    none, for calls of constant functions in branches."""
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def check(target, seed):
    """Compares one program, and returns the number of values of a step."""
    program = Program(seed)
    with tf.Graph().as_default():
        fetches = program.build()
        local = without_devices(tf.get_default_graph().as_graph_def(add_shapes=True))
        names = [fetch.name for fetch in fetches]
        with tf.Session(target) as session:
            ours = [run(session, fetches, feeds) for feeds in program.feeds()]
        feeds = [{key.name: value for key, value in one.items()} for one in program.feeds()]
    with tf.Graph().as_default():
        tf.import_graph_def(local, name="")
        with tf.Session(config=unoptimized()) as session:
            theirs = [run(session, names, one) for one in feeds]
    for one, own, other in zip(feeds, ours, theirs):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5, err_msg=f"{program.text}, fed {one}")
    return len(fetches)


def main():
    tf.logging.set_verbosity(tf.logging.ERROR)
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True, help="task 0 of a job 'worker' of two tasks")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failed, counts, start = [], [], time.monotonic()
    for seed in range(args.seed, args.seed + args.count):
        try:
            counts.append(check(args.target, seed))
        except Exception as error:  # Runs all programs, also after a failure.
            failed.append(seed)
            print("FAILED", seed, type(error).__name__, str(error)[:1500], flush=True)
    assert not failed, failed
    print(f"ok {len(counts)} programs, {sum(counts)} values, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
