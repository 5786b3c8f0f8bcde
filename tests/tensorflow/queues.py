"""Runs the scenarios of `synchronisation/` on our servers and on TensorFlow's, and compares the recorded results."""
import argparse
import json
import os
import re
import socket
import subprocess
import sys

import tensorflow.compat.v1 as tf

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import synchronisation  # noqa: E402
from synchronisation import until  # noqa: E402
from synchronisation import accumulators, barriers, queues, readers, replicas, staging, tables, types  # noqa: E402,F401

tf.disable_v2_behavior()

SERVER = """
import json, sys
import tensorflow as tf
cluster, job, task = sys.argv[1:]
server = tf.distribute.Server(json.loads(cluster), job_name=job, task_index=int(task))
server.join()
"""


class Servers:
    """TensorFlow's servers for one ps and two workers."""

    def __enter__(self):
        ports = [free_port() for _ in range(3)]
        addresses = [f"localhost:{port}" for port in ports]
        cluster = json.dumps({"ps": addresses[:1], "worker": addresses[1:]})
        tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
        self.processes = [
            subprocess.Popen([sys.executable, "-c", SERVER, cluster, job, str(task)], stderr=subprocess.DEVNULL) for job, task in tasks
        ]
        self.workers = [f"grpc://{address}" for address in addresses[1:]]
        until(lambda: all(listens(port) for port in ports), 120.0)
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("localhost", port)) == 0


def run(scenario, workers, names):
    peer = synchronisation.Peer(workers, f"{names}x{synchronisation.SCENARIOS.index(scenario)}")
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        scenario(peer)
    return [(label, without_numbers(value)) for label, value in peer.records]


def without_numbers(value):
    """Removes the counter that begins the names of anonymous objects from an error message."""
    if isinstance(value, tuple) and isinstance(value[-1], str):
        return (*value[:-1], re.sub(r"'_\d+_", "'_N_", value[-1]))
    return value


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", action="append", required=True, help="the target of one of our workers; given twice")
    parser.add_argument("--peer", action="append", help="the target of a running TensorFlow worker; without any, servers are started")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    options = parser.parse_args()
    names = f"r{os.getpid()}"
    differences = 0
    selected = [s for s in synchronisation.SCENARIOS if options.only in s.__name__]
    with Servers() if not options.peer else open(os.devnull) as servers:
        peers = options.peer or servers.workers
        for scenario in selected:
            theirs, ours = outcome(scenario, peers, names), outcome(scenario, options.target, names)
            for place in range(max(len(theirs), len(ours))):
                a = ours[place] if place < len(ours) else "nothing"
                b = theirs[place] if place < len(theirs) else "nothing"
                # An exception of the scenario itself counts as a difference, even if both sides raise it.
                if a != b or a[0] == "scenario":
                    differences += 1
                    print(f"{scenario.__name__}: {a}, not {b}", flush=True)
            print(f"ok {scenario.__name__} ({len(theirs)})", flush=True)
    print(f"{len(selected)} scenarios, {differences} differences")
    sys.exit(1 if differences else 0)


def outcome(scenario, workers, names):
    try:
        return run(scenario, workers, names)
    except Exception as error:  # pylint: disable=broad-except
        return [("scenario", f"{type(error).__name__}: {error}"[:2000])]


main()
