"""Runs programs in TensorFlow-1 style on a cluster of our servers and on TensorFlow's, and compares their results.

    python run.py --server target/release/anabranch-worker            # every program
    python run.py --server '...' lstm towers                          # some of them
    python run.py lstm                                                # on TensorFlow's servers alone

A program is a module of `programs/`. Each of its `CLIENTS` client processes (default 1) calls its `run(job)` on a cluster
of one ps and two workers that all programs share. The values that `run` returns must be the same on both sides, within
the module's relative `TOLERANCE`; the program's assertions must hold on each side.
"""
import argparse
import importlib
import multiprocessing
import os
import pathlib
import shlex
import shutil
import sys
import tempfile
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
HERE = pathlib.Path(__file__).resolve().parent
PEER = HERE.parent.parent / "benches" / "peer"
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE / "programs"), str(PEER)]

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from cluster import Cluster  # noqa: E402
from job import Job  # noqa: E402

tf.logging.set_verbosity(tf.logging.ERROR)

JOBS = {"ps": 1, "worker": 2}

# Clients are forked from this process, which has imported TensorFlow but started no session or thread of it.
PROCESSES = multiprocessing.get_context("fork")


def client(name, job, pipe):
    """A client process: sends the program's result, or the traceback of its failure."""
    try:
        np.random.seed(job.task)
        module = importlib.import_module(name)
        if not getattr(module, "V2_BEHAVIOR", False):
            tf.disable_v2_behavior()
        else:
            tf.disable_eager_execution()
        job.pipe = pipe
        result = module.run(job)
        pipe.send(("result", result if result is not None else {}))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
    finally:
        pipe.close()
        # Skips the interpreter's shutdown, in which threads of sessions might still block.
        os._exit(0)


class Side:
    """One program on one cluster: its client processes and their results so far."""

    def __init__(self, name, cluster, deadline_s):
        self.name, self.cluster = name, cluster
        self.until = time.monotonic() + deadline_s
        self.scratch = tempfile.mkdtemp(prefix="client-")
        module = importlib.import_module(name)
        self.clients, self.results = [], {}
        for task in range(getattr(module, "CLIENTS", 1)):
            ours, theirs = PROCESSES.Pipe()
            job = Job(spec=cluster.spec, task=task, scratch=self.scratch)
            process = PROCESSES.Process(target=client, args=(name, job, theirs), daemon=True)
            process.start()
            theirs.close()
            self.clients.append((process, ours))

    def finish(self):
        """Waits for the clients; returns the list of their results, or the description of a failure."""
        try:
            for task, (process, pipe) in enumerate(self.clients):
                while task not in self.results:
                    if not pipe.poll(max(0.0, self.until - time.monotonic())):
                        return f"client {task} did not end in time"
                    try:
                        kind, value = pipe.recv()
                    except EOFError:
                        return f"client {task} ended without sending a result"
                    if kind == "failed":
                        return f"client {task}: {value}"
                    if kind == "result":
                        self.results[task] = value
                    else:
                        getattr(self, kind)(*value)
                        pipe.send("done")
            return [self.results[task] for task in range(len(self.clients))]
        finally:
            for process, _ in self.clients:
                process.kill()
                process.join()
            shutil.rmtree(self.scratch, ignore_errors=True)

    def restart(self, job, index):
        """Kills a task and starts it again, at a client's request (`Job.ask`)."""
        self.cluster.kill(job, index)
        self.cluster.start(job, index)
        self.cluster.wait_for(self.cluster.spec[job][index])


def differences(ours, theirs, tolerance):
    """Yields the differences between the clients' results on both sides, as text."""
    for task, (a, b) in enumerate(zip(ours, theirs)):
        if a.keys() != b.keys():
            yield f"client {task} returned {sorted(a)}, not {sorted(b)}"
        for key in a.keys() & b.keys():
            x, y = np.asarray(a[key]), np.asarray(b[key])
            if x.dtype.kind in "fc" and x.shape == y.shape:
                same = np.allclose(x, y, rtol=tolerance, atol=tolerance * 1e-2, equal_nan=True)
            else:
                same = x.shape == y.shape and bool((x == y).all())
            if not same:
                yield f"client {task}: {key} is {np.array2string(x, threshold=8)}, not {np.array2string(y, threshold=8)}"


def compare(name, ours, theirs, deadline_s):
    """Runs one program on both sides at once; returns a list of failures and differences."""
    clusters = {side_name: cluster for side_name, cluster in (("our servers", ours), ("the peer's", theirs)) if cluster}
    sides = [Side(name, cluster, deadline_s) for cluster in clusters.values()]
    results = [side.finish() for side in sides]
    wrong = [f"on {side_name}: {r}" for side_name, r in zip(clusters, results) if isinstance(r, str)]
    if wrong or len(results) < 2:
        return wrong
    return list(differences(*results, getattr(importlib.import_module(name), "TOLERANCE", 1e-4)))


def clear(cluster):
    """Clears the cluster's variables and other resources after a program."""

    def reset(target):
        tf.Session.reset(target)

    process = PROCESSES.Process(target=reset, args=(cluster.target(),), daemon=True)
    process.start()
    process.join(30)
    process.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--server", help="our worker's command; without it only the peer runs")
    parser.add_argument("--alone", action="store_true", help="our servers alone: only the programs' assertions, no comparison")
    parser.add_argument("--deadline", type=float, default=90.0, help="seconds a program may take")
    flags = parser.parse_args()
    names = flags.programs or sorted(p.stem for p in (HERE / "programs").glob("*.py") if p.stem[0] != "_")
    ours = Cluster(shlex.split(flags.server), JOBS) if flags.server else None
    theirs = None if flags.alone else Cluster([sys.executable, str(PEER / "tf_server.py")], JOBS)
    failed = 0
    running = [cluster.__enter__() for cluster in (ours, theirs) if cluster]
    try:
        for name in names:
            started = time.monotonic()
            wrong = compare(name, ours, theirs, flags.deadline)
            print(f"{'FAILED' if wrong else 'ok'} {name} {time.monotonic() - started:.1f} s", flush=True)
            for line in wrong:
                print("    " + line.replace("\n", "\n    "), flush=True)
            failed += bool(wrong)
            for cluster in running:
                clear(cluster)
    finally:
        for cluster in running:
            cluster.__exit__()
    print(f"{len(names)} programs, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
