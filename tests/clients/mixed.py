"""Runs the same programs on clusters that mix our servers and TensorFlow's; all mixtures must compute the same numbers.

    python mixed.py --server target/release/anabranch-worker

Each of the four tasks (two ps, two workers) is ours or TensorFlow's, in all sixteen combinations. On each cluster, the
scenarios of `mixtures/` run with worker 0 as their master, and again with worker 1.
"""
import argparse
import importlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import time
import traceback

from run import PROCESSES, np, tf  # first: it sets up TensorFlow's environment and the path

from cluster import free_ports

SCENARIOS = ["training", "loops", "functional", "queues", "partial", "traces"]
TASKS = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]


class Mixture:
    """A running cluster. `ours`: for each of `TASKS`, whether it runs our server or TensorFlow's."""

    def __init__(self, command, ours):
        self.command, self.ours = command, ours
        ports = iter(free_ports(len(TASKS)))
        self.spec = {"ps": [], "worker": []}
        for job, _ in TASKS:
            self.spec[job].append(f"127.0.0.1:{next(ports)}")
        self.running = []

    def __enter__(self):
        for (job, index), ours in zip(TASKS, self.ours):
            if ours:
                config = {"cluster": self.spec, "task": {"type": job, "index": index}}
                environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
                self.running.append(subprocess.Popen(self.command, env=environment, stderr=subprocess.DEVNULL))
            else:
                self.running.append(PROCESSES.Process(target=serve, args=(self.spec, job, index), daemon=True))
                self.running[-1].start()
        return self

    def __exit__(self, *_):
        for task in self.running:
            task.kill()
        for task in self.running:
            task.wait() if isinstance(task, subprocess.Popen) else task.join()


def serve(spec, job, index):
    """Runs TensorFlow's server for one task."""
    tf.train.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=index).join()


def compute(spec):
    """Runs all scenarios with each worker as master; returns their values by scenario and master."""
    tf.disable_v2_behavior()
    values = {}
    for name in SCENARIOS:
        with tf.Graph().as_default():
            run = importlib.import_module(f"mixtures.{name}").build()
            first, second = (tf.Session("grpc://" + address) for address in spec["worker"])
            with first, second:
                values[f"{name} of worker 0"] = run(first, second)
                values[f"{name} of worker 1"] = run(second, first)
    return values


def client(spec, pipe):
    """A client process: sends the values of all scenarios, or a traceback."""
    try:
        pipe.send(compute(spec))
    except BaseException:
        pipe.send(traceback.format_exc())
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, help="our worker's command")
    parser.add_argument("--only", help="one mixture, such as 0110: a digit for each task, 1 if the task is ours")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds a mixture may take")
    flags = parser.parse_args()
    expected = None
    count, failed = 0, 0
    for ours in itertools.product([False, True], repeat=len(TASKS)):
        name = "".join(str(int(o)) for o in ours)
        if flags.only and name not in (flags.only, "0000"):
            continue
        with Mixture(shlex.split(flags.server), ours) as cluster:
            mine, theirs = PROCESSES.Pipe()
            process = PROCESSES.Process(target=client, args=(cluster.spec, theirs), daemon=True)
            started = time.monotonic()
            process.start()
            theirs.close()
            try:
                result = mine.recv() if mine.poll(flags.deadline) else "the client did not end in time"
            except EOFError:
                result = "the client ended without sending a result"
            process.kill()
            process.join()
        expected = result if expected is None else expected
        wrong = result if isinstance(result, str) else difference(result, expected)
        count, failed = count + 1, failed + bool(wrong)
        print(f"{'FAILED' if wrong else 'ok'} {name} {time.monotonic() - started:.1f} s {wrong or ''}", flush=True)
    print(f"{count} mixtures, {failed} failed")
    sys.exit(1 if failed else 0)


def difference(found, expected):
    """The first difference between the values of two mixtures as text, or None."""
    for scenario, values in found.items():
        for i, (a, b) in enumerate(zip(values, expected[scenario])):
            a, b = np.asarray(a), np.asarray(b)
            close = a.dtype.kind == "f" and a.shape == b.shape
            same = np.allclose(a, b, rtol=1e-5, atol=1e-6) if close else np.array_equal(a, b)
            if not same:
                return f"{scenario}: value {i} is {a}, not {b}"
        if len(values) != len(expected[scenario]):
            return f"{scenario}: {len(values)} values, not {len(expected[scenario])}"
    return None


if __name__ == "__main__":
    main()
