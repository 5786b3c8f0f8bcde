"""Clusters of which some tasks are ours and some are TensorFlow's: the same programs, the same numbers in each mixture.

    python mixed.py --server target/release/anabranch-worker

The four tasks (two ps, two workers) are given to the two implementations in all sixteen ways. In each, the scenarios of
`mixtures/` run with worker 0 as their master, and again with worker 1.
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
    """A cluster whose tasks are ours where `ours` says so."""

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
    """TensorFlow's server."""
    tf.train.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=index).join()


def compute(spec):
    """What each scenario says, by its name and its master; the masters are both workers."""
    tf.disable_v2_behavior()
    said = {}
    for name in SCENARIOS:
        with tf.Graph().as_default():
            run = importlib.import_module(f"mixtures.{name}").build()
            first, second = (tf.Session("grpc://" + address) for address in spec["worker"])
            with first, second:
                said[f"{name} of worker 0"] = run(first, second)
                said[f"{name} of worker 1"] = run(second, first)
    return said


def client(spec, pipe):
    try:
        pipe.send(compute(spec))
    except BaseException:
        pipe.send(traceback.format_exc())
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, help="our worker's command")
    parser.add_argument("--only", help="one mixture, such as 0110: 1 where the task is ours")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds a mixture may take")
    flags = parser.parse_args()
    wanted = None
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
                said = mine.recv() if mine.poll(flags.deadline) else "it did not end in time"
            except EOFError:
                said = "the client ended without a word"
            process.kill()
            process.join()
        wanted = said if wanted is None else wanted
        wrong = said if isinstance(said, str) else difference(said, wanted)
        count, failed = count + 1, failed + bool(wrong)
        print(f"{'FAILED' if wrong else 'ok'} {name} {time.monotonic() - started:.1f} s {wrong or ''}", flush=True)
    print(f"{count} mixtures, {failed} failed")
    sys.exit(1 if failed else 0)


def difference(said, wanted):
    """What two mixtures say differently first."""
    for scenario, values in said.items():
        for i, (a, b) in enumerate(zip(values, wanted[scenario])):
            a, b = np.asarray(a), np.asarray(b)
            close = a.dtype.kind == "f" and a.shape == b.shape
            same = np.allclose(a, b, rtol=1e-5, atol=1e-6) if close else np.array_equal(a, b)
            if not same:
                return f"{scenario}: value {i} is {a}, not {b}"
        if len(values) != len(wanted[scenario]):
            return f"{scenario}: {len(values)} values, not {len(wanted[scenario])}"
    return None


if __name__ == "__main__":
    main()
