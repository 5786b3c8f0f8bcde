"""Run benches/gpu.rs and PyTorch on one GPU, alternately, and print the ratios.

    cargo bench --bench gpu --no-run                                        # prints where the binary is
    python benches/peer/gpu/compare.py --bench target/dist/deps/gpu-...   # every workload
    python benches/peer/gpu/compare.py --bench ... mlp cnn                   # some workloads
    python benches/peer/gpu/compare.py --bench ... --cpu                     # small sizes on a CPU, as a functional check

Each figure is measured in a separate process, alternately (ours, eager, compiled, ours, ...), and the median of each side
is reported. A ratio over 1 means that ours is better; next to it is the required ratio, marked if it is missed. The last
line has all figures as JSON. The exit code is 1 if a side failed or a ratio is missed.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys

TORCH = [sys.executable, str(pathlib.Path(__file__).parent / "torch_side.py")]

# The required ratio of ours to each side of the peer, by workload; None if there is no requirement.
WANTED = {
    "product": {"eager": 0.95, "compiled": None},
    "mlp": {"eager": 2.0, "compiled": 1.0},
    "cnn": {"eager": 2.0, "compiled": 1.0},
    "resnet50": {"eager": None, "compiled": 1.0},
    "lstm": {"eager": None, "compiled": 1.0},
    "copy_on_device": {"eager": 0.9},
    "copy_to_device": {"eager": 0.9},
    "copy_pageable_to_device": {"eager": None},
    "copy_from_device": {"eager": None},
}


def measure(command, timeout):
    """Returns a side's figure and its value, or an error."""
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {timeout:g} s"}
    except OSError as error:
        return {"error": str(error)}
    for line in out.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[7:])
    lines = [line for line in (out.stderr + out.stdout).splitlines() if line.strip()]
    return {"error": (lines or ["no output"])[-1][:300]}


def median(results):
    """Returns the name and the median of a figure."""
    got = [(figure, value) for result in results for figure, value in result.items() if figure in ("step_us", "MBps")]
    return (got[0][0], statistics.median(value for _, value in got)) if got else ("", math.nan)


def compare(wanted, got):
    """Yields one row for each side of the peer."""
    figure, ours = median(got["ours"])
    for side, wanted in wanted.items():
        _, peer = median(got[side])
        ratio = ours / peer if figure == "MBps" else peer / ours
        is_reached = not math.isnan(ratio) and (wanted is None or ratio >= wanted)
        yield {
            "figure": figure, "side": side, "peer": peer, "ours": ours, "ratio": ratio, "wanted": wanted,
            "is_reached": is_reached,
        }


def card():
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout.strip() or "none"
    except (OSError, subprocess.TimeoutExpired):
        return "none"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bench", required=True, help="the binary of benches/gpu.rs")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--timeout", type=float, default=300.0, help="of one figure, seconds")
    ap.add_argument("--cpu", action="store_true")
    ap.add_argument("--no-cuda-graphs", action="store_true", help="ours launches each kernel by itself")
    ap.add_argument("workloads", nargs="*", metavar="workload", help=", ".join(WANTED))
    a = ap.parse_args()
    unknown = [name for name in a.workloads if name not in WANTED]
    if unknown:
        ap.error(f"there is no workload {unknown[0]}")
    small = ["--cpu"] if a.cpu else []
    launched = ["--no-cuda-graphs"] if a.no_cuda_graphs else []
    print(f"card: {card()}", flush=True)
    rows = []
    for name in a.workloads or WANTED:
        sides = {"ours": [a.bench, *small, *launched], "eager": [*TORCH, *small], "compiled": [*TORCH, "--compile", *small]}
        sides = {side: command for side, command in sides.items() if side == "ours" or side in WANTED[name]}
        got = {side: [] for side in sides}
        for _ in range(a.rounds):
            for side, command in sides.items():
                got[side].append(measure([*command, name], a.timeout))
        for side, results in got.items():
            for error in [r["error"] for r in results if "error" in r][:1]:
                print(f"{name:23} {side}: {error}", flush=True)
        # Figures of small sizes on a CPU are not meaningful.
        wanted = dict.fromkeys(WANTED[name]) if a.cpu else WANTED[name]
        for row in compare(wanted, got):
            rows.append({"workload": name, **row})
            least = "" if row["wanted"] is None else f"of {row['wanted']:.2f}{'' if row['is_reached'] else ': MISSED'}"
            print(
                f"{name:23} {row['figure']:8} {row['side']:9} {row['peer']:12.5g} {row['ours']:12.5g} "
                f"{row['ratio']:8.2f}x {least}",
                flush=True,
            )
    print("RATIOS " + json.dumps(rows))
    return 0 if all(row["is_reached"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
