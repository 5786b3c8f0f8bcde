"""Training throughput with 1, 2, 4 and 8 workers on hosts of their own, on TensorFlow's own servers and on others.

    python scaling.py --server 'path/to/worker-binary' [async | sync | towers] [--rounds 1]

A parameter server and the workers stand on hosts of their own (network.py), 1 Gbit/s and 2 ms of round trip. The same
client script (scaling_job.py) trains a model of 3.2 MB on either side. The figure is gradients a second, of all workers
together; `most` is what the links allow: a worker's own for one, the parameter server's for many or in step. `busy` is
how much of this machine's processors was in use meanwhile, by the job, the hosts' network and the switch: near 1, the
machine is what is measured.
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

    def hear(self, word):
        """What follows the word on a line that begins with it."""
        for line in self.process.stdout:
            if line.startswith(word):
                return line[len(word):]
        raise RuntimeError("".join(self.errors[-5:]) or "a client ended without a word")

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.hear("RESULT"))


def measure(command, mode, workers, timeout_s):
    """Gradients a second, and the part of the processors in use meanwhile."""
    with Network(SERVERS + workers) as network:
        with Cluster(command, {"ps": SERVERS, "worker": workers}, network=network) as cluster:
            clients = [Client(cluster, mode, w) for w in range(1 if mode == "towers" else workers)]
            end = threading.Timer(timeout_s, lambda: [c.process.kill() for c in clients])
            end.start()
            try:
                for client in clients:
                    client.hear("READY")
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
    """Of all processors since the start: in use, and in all."""
    times = [int(t) for t in open("/proc/stat").readline().split()[1:9]]
    idle = times[3] + times[4]
    return sum(times) - idle, sum(times)


def most(mode, workers, gbit=1.0):
    """Gradients a second that the links allow, if each is pulled and pushed whole and nothing overlaps in a worker.

    Workers in step use the server's link one way at a time; more only if some are ahead of others.
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
