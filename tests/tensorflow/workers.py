"""Clusters of workers for checks of collectives, each a process: all are ours, or one is TensorFlow's server.

    python workers.py LEADER        serves TensorFlow's task that TF_CONFIG names; task LEADER leads the groups
"""
import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import tensorflow.compat.v1 as tf

# Longest time in seconds for which a server may take to listen.
START = 90


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def config_of(leader):
    config = tf.ConfigProto()
    config.experimental.collective_group_leader = f"/job:worker/replica:0/task:{leader}"
    return config


class Workers:
    """Workers by the command `ours`; the task `foreign` is TensorFlow's, if one is. The task `leader` leads the groups, the
    default one without it. Our workers log what `log` selects."""

    def __init__(self, ours, count, foreign=None, leader=None, log="warn"):
        if leader is not None:
            ours = [*ours, "--config", base64.b64encode(config_of(leader).SerializeToString()).decode()]
        self.ports = [free_port() for _ in range(count)]
        self.targets = [f"grpc://localhost:{port}" for port in self.ports]
        foreign_command = [sys.executable, __file__, str(leader)]
        self.commands = [foreign_command if task == foreign else ours for task in range(count)]
        self.log, self.logs = log, [tempfile.TemporaryFile("w+") for _ in range(count)]
        self.processes = [self.start(task) for task in range(count)]
        for task in range(count):
            self.wait_for(task)

    def start(self, task):
        spec = {"worker": [f"localhost:{port}" for port in self.ports]}
        tf_config = json.dumps({"cluster": spec, "task": {"type": "worker", "index": task}})
        environment = {**os.environ, "TF_CONFIG": tf_config, "RUST_LOG": self.log}
        return subprocess.Popen(self.commands[task], env=environment, stdin=subprocess.DEVNULL, stderr=self.logs[task])

    def wait_for(self, task):
        deadline = time.monotonic() + START
        while socket.socket().connect_ex(("localhost", self.ports[task])):
            assert time.monotonic() < deadline, f"task {task} does not start"
            time.sleep(0.05)

    def kill(self, task):
        self.processes[task].kill()
        self.processes[task].wait()

    def restart(self, task):
        self.processes[task] = self.start(task)
        self.wait_for(task)

    def lines(self, task, text):
        """Returns how many lines of a task's log contain a text."""
        self.logs[task].seek(0)
        return sum(text in line for line in self.logs[task])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for task in range(len(self.processes)):
            self.kill(task)


def main():
    """Serves TensorFlow's task."""
    config = json.loads(os.environ["TF_CONFIG"])
    task = config["task"]
    spec, leader = tf.train.ClusterSpec(config["cluster"]), config_of(int(sys.argv[1]))
    tf.train.Server(spec, job_name=task["type"], task_index=task["index"], config=leader).join()


if __name__ == "__main__":
    main()
