"""Measure training throughput with 1, 2, 4 and 8 workers on separate hosts, on TensorFlow's own servers and on others.

    python scaling.py --server 'path/to/worker-binary' [async | sync | towers] [--rounds 1]

The parameter server and each worker have their own hosts (network.py), with 1 Gbit/s and a round trip of 2 ms. The same
client script (scaling_job.py) trains a model of 3.2 MB on both sides. The figure is gradients per second of all workers
together; `most` is the maximum that the links allow, limited by the worker's link for one worker and by the parameter
server's link for many or synchronous workers. `busy` is the share of this machine's processors used by the job, the hosts'
network and the switch: if it is near 1, the machine is the bottleneck.
"""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster import Cluster
from network import Network

HERE = pathlib.Path(__file__).parent
SERVERS = 1
MODEL_BYTES = 4 * 2 * 784 * 512
MODES = ("async", "sync", "towers")


class Client:
    def __init__(self, cluster, mode, worker):
        env = {**os.environ, "SCALING_CLUSTER": json.dumps(cluster.spec), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "scaling_job.py"), mode, str(worker)]
        with cluster.inside("worker", worker):
            self.process = subprocess.Popen(
                command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        self.errors = []
        threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True).start()

    def wait_for_line(self, word):
        """Waits for a line that begins with the word, and returns the rest of the line."""
        for line in self.process.stdout:
            if line.startswith(word):
                return line[len(word):]
        raise RuntimeError("".join(self.errors[-5:]) or "a client ended without a word")

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.wait_for_line("RESULT"))


def measure(command, mode, workers, timeout_s):
    """Returns the gradients per second, and the share of the processors in use meanwhile."""
    with Network(SERVERS + workers) as network:
        with Cluster(command, {"ps": SERVERS, "worker": workers}, network=network) as cluster:
            clients = [Client(cluster, mode, w) for w in range(1 if mode == "towers" else workers)]
            end = threading.Timer(timeout_s, lambda: [c.process.kill() for c in clients])
            end.start()
            try:
                for client in clients:
                    client.wait_for_line("READY")
                before = processor_time()
                updates = clients[0].measure()
                used, total = (after - b for after, b in zip(processor_time(), before))
            finally:
                end.cancel()
                for client in clients:
                    client.process.kill()
                    client.process.wait()
    return (updates if mode == "async" else updates * workers), used / total


def processor_time():
    """Returns the busy time and the total time of all processors since boot."""
    times = [int(t) for t in open("/proc/stat").readline().split()[1:9]]
    idle = times[3] + times[4]
    return sum(times) - idle, sum(times)


def most(mode, workers, gbit=1.0):
    """Returns the gradients per second that the links allow, if a worker pulls and pushes whole gradients without overlap.

    Synchronous workers use the server's link in one direction at a time; they exceed this figure only if some workers are
    ahead of others.
    """
    one_way = MODEL_BYTES * 8e-9 / gbit
    of_server = SERVERS / one_way if mode == "async" else SERVERS / (2 * one_way)
    return min(workers / (2 * one_way), of_server)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--server", required=True, help="command of the server under test")
    ap.add_argument("--rounds", type=int, default=1)
    ap.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    ap.add_argument("--timeout", type=float, default=180.0)
    ap.add_argument("modes", nargs="*", default=MODES)
    a = ap.parse_args()
    sides = {"peer": [sys.executable, str(HERE / "tf_server.py")], "ours": shlex.split(a.server)}
    print(f"{'mode':8}{'workers':>8}{'peer':>9}{'busy':>6}{'ours':>9}{'busy':>6}{'ratio':>7}{'most':>8}", flush=True)
    for mode in a.modes:
        for workers in a.workers:
            got = {side: [] for side in sides}
            for _ in range(a.rounds):
                for side, command in sides.items():
                    try:
                        got[side].append(measure(command, mode, workers, a.timeout))
                    except (RuntimeError, OSError) as error:
                        print(f"{mode} of {workers} workers, {side}: {error}", file=sys.stderr, flush=True)
            (peer, peer_busy), (ours, our_busy) = (middle(v) for v in got.values())
            row = f"{mode:8}{workers:8}{peer:9.1f}{peer_busy:6.2f}{ours:9.1f}{our_busy:6.2f}"
            print(f"{row}{ours / peer:7.2f}{most(mode, workers):8.1f}", flush=True)


def middle(measured):
    return [statistics.median(figures) for figures in zip(*measured)] if measured else [float("nan")] * 2


if __name__ == "__main__":
    main()
