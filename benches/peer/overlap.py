"""Measure which share of the time for combining gradients is hidden behind the backward pass, on a slow network.

    python overlap.py [--gbit 1] [--batch 1152] [--steps 40] [--rounds 3] [--bench PATH]     # as root: network namespaces

Two workers are on hosts of their own (network.py) with links of this rate. They train the model `deep` of
`benches/data_parallel.rs`: 25 MB of weights in layers of 1 MiB. A round measures four steps on the first worker, in
milliseconds: `alone`, while each worker trains for itself; `all_reduce`, the step that combines the gradients of both;
`exchange_alone` and `exchange`, the same with gradients that take no time to compute. Both workers are busy in each,
because they share one machine's processors and memory. The exchange of gradients takes
`exchange - exchange_alone`, a step is longer by `all_reduce - alone`, and the rest is hidden. `backward` is two thirds of
`alone`, because a dense layer's gradients take two products and its result takes one.
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from network import Network

WORKERS = 2
WAYS = ("alone", "exchange_alone", "all_reduce", "exchange")


def built_bench():
    """Builds the bench, and returns its path."""
    command = ["cargo", "bench", "--bench", "data_parallel", "--no-run", "--message-format", "json"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    return next(m["executable"] for m in messages if m.get("target", {}).get("name") == "data_parallel")


def start(network, bench, host, addresses, options):
    command = [bench, "--model", "deep", "--worker", str(host), "--addresses", addresses, "--transport", "tcp", *options]
    with network.inside(host):
        return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def measure(workers, way):
    """Returns the median time of a step of the first worker, in milliseconds."""
    for worker in workers:
        worker.stdin.write(way + "\n")
        worker.stdin.flush()
    answers = [worker.stdout.readline() for worker in workers]
    if not all(answers):
        raise RuntimeError(f"a worker has failed in {way}")
    return json.loads(answers[0])["ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--round-trip-ms", type=float, default=0.2)
    parser.add_argument("--batch", type=int, default=1152)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bench", help="a built bench")
    arguments = parser.parse_args()
    bench = arguments.bench or built_bench()
    options = ["--batch", str(arguments.batch), "--steps", str(arguments.steps)]
    with Network(WORKERS, arguments.gbit, arguments.round_trip_ms) as network, contextlib.ExitStack() as started:
        addresses = ",".join(f"{network.address(host)}:{2222 + host}" for host in range(WORKERS))
        workers = []
        for host in range(WORKERS):
            workers.append(start(network, bench, host, addresses, options))
            started.callback(workers[-1].kill)
        shares = []
        for _ in range(arguments.rounds):
            times = {way: measure(workers, way) for way in WAYS}
            exchange = times["exchange"] - times["exchange_alone"]
            shares.append(1 - (times["all_reduce"] - times["alone"]) / exchange)
            print({**times, "backward": round(times["alone"] * 2 / 3, 1), "hidden": round(shares[-1], 2)}, flush=True)
        print("hidden share, median:", round(statistics.median(shares), 2))


if __name__ == "__main__":
    main()
