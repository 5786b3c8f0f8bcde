"""Measure the time from a server's start until it listens, and its memory while idle.

    python startup.py path/to/worker-binary
"""
import json
import os
import socket
import statistics
import subprocess
import sys
import time

from cluster import free_ports


def once(command):
    """Returns the seconds until the server listens, and its resident MiB one second later."""
    (port,) = free_ports(1)
    config = {"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": {"type": "worker", "index": 0}}
    start = time.perf_counter()
    server = subprocess.Popen(
        command, env={**os.environ, "TF_CONFIG": json.dumps(config)}, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if server.poll() is not None or time.perf_counter() - start > 60:
                    raise SystemExit("the server does not listen")
        listening = time.perf_counter() - start
        time.sleep(1)
        status = open(f"/proc/{server.pid}/status").read()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        return listening, resident / 1024
    finally:
        server.kill()
        server.wait()


def main():
    runs = [once(sys.argv[1:]) for _ in range(11)]
    listening, resident = zip(*runs)
    print(f"listening after {1e3 * statistics.median(listening):.1f} ms (worst {1e3 * max(listening):.1f} ms)")
    print(f"idle: {statistics.median(resident):.1f} MiB resident (worst {max(resident):.1f} MiB)")


main()
