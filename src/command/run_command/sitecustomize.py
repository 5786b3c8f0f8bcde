"""Replaces `tf.train.Server` by a server process of Anabranch in every Python process started by `anabranch run`.

TensorFlow's own server runs in the program's process, and TensorFlow's client does not use gRPC for a server there.
Therefore the class is replaced when its module is imported, before other code can import it.
"""
import atexit
import base64
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

MODULE = "tensorflow.python.training.server_lib"
HERE = os.path.dirname(os.path.abspath(__file__))

# Time limits in seconds: for a server to listen, for a server to end once asked to, and for the program to
# handle a signal if it waits for nothing.
START_DEADLINE = 30.0
STOP_DEADLINE = 20.0
HANDLER_DEADLINE = 1.0


class ServerFinder(importlib.abc.MetaPathFinder):
    """A finder of TensorFlow's server module that replaces the class `Server` after loading the module."""

    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_replace(module):
            load(module)
            module.Server = server_class(module)

        spec.loader.exec_module = load_and_replace
        return spec


def server_class(server_lib):
    """Returns a subclass of TensorFlow's `Server` that runs the server as a process."""

    class Server(server_lib.Server):
        def __init__(self, server_or_cluster_def, job_name=None, task_index=None, protocol=None, config=None, start=True):
            make = server_lib._make_server_def
            self._server_def = with_ports(make(server_or_cluster_def, job_name, task_index, protocol, config))
            if self._server_def.protocol != "grpc":
                raise ValueError(f"anabranch run: protocol {self._server_def.protocol!r}: servers speak 'grpc' alone")
            self._process = None
            if start:
                self.start()

        def __del__(self):
            # The process outlives this object, like TensorFlow's server, and is stopped at the program's end.
            pass

        @property
        def server_def(self):
            return self._server_def

        @property
        def target(self):
            return "grpc://" + address(self._server_def)

        def start(self):
            if self._process is None:
                self._process = ServerProcess(self._server_def)

        def join(self):
            """Waits until the server has been stopped."""
            self.start()
            self._process.join()

        @staticmethod
        def create_local_server(config=None, start=True):
            cluster = server_lib.ClusterSpec({"localhost": ["localhost:0"]})
            return Server(cluster, protocol="grpc", config=config, start=start)

    Server.__qualname__ = "Server"
    Server.__module__ = MODULE
    return Server


def address(server_def):
    for job in server_def.cluster.job:
        if job.name == server_def.job_name:
            if server_def.task_index in job.tasks:
                return job.tasks[server_def.task_index]
    raise ValueError(f"anabranch run: the cluster has no task /job:{server_def.job_name}/task:{server_def.task_index}")


def with_ports(server_def):
    """Replaces port 0 in the task's own address by a free port."""
    host, _, port = address(server_def).rpartition(":")
    if port == "0":
        with socket.socket() as held:
            held.bind(("", 0))
            chosen = f"{host}:{held.getsockname()[1]}"
        for job in server_def.cluster.job:
            if job.name == server_def.job_name:
                job.tasks[server_def.task_index] = chosen
    return server_def


class ServerProcess:
    """The server process of one task, which ends with this process."""

    def __init__(self, server_def):
        self.name = f"/job:{server_def.job_name}/task:{server_def.task_index}"
        cluster = {job.name: {str(i): a for i, a in sorted(job.tasks.items())} for job in server_def.cluster.job}
        flags = [f"{job}=" + ",".join(f"{i}@{a}" for i, a in tasks.items()) for job, tasks in cluster.items()]
        command = [
            os.environ["ANABRANCH_RUN_SERVER"],
            "worker",
            "--stop-with-stdin",
            "--cluster=" + ";".join(flags),
            "--job=" + server_def.job_name,
            "--task=" + str(server_def.task_index),
            "--config=" + base64.b64encode(server_def.default_session_config.SerializeToString()).decode(),
            *json.loads(os.environ.get("ANABRANCH_RUN_FLAGS", "[]")),
        ]
        self.joined = False
        # A separate process group, because the program itself handles a Ctrl-C in the terminal.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        atexit.register(self.stop)
        self.end_with_the_program()
        self.wait_until_listening(address(server_def), command)

    def wait_until_listening(self, listens_on, command):
        host, _, port = listens_on.rpartition(":")
        until = time.monotonic() + START_DEADLINE
        while True:
            if self.process.poll() is not None:
                said = f"ended with {self.process.returncode} at once"
                break
            try:
                socket.create_connection((host.strip("[]"), int(port)), 1.0).close()
                return
            except OSError as error:
                said = f"does not answer on {listens_on}: {error}"
            if time.monotonic() > until:
                break
            time.sleep(0.01)
        self.stop()
        raise RuntimeError(f"anabranch run: the server of {self.name} {said} ({shlex.join(command)})")

    def end_with_the_program(self):
        """Makes SIGTERM stop the server in order. Afterwards `join` returns, or the program ends if it is not in `join`."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return
        handled = threading.Event()

        def terminate(number, frame):
            handled.set()
            if not self.joined:
                sys.exit(128 + number)
            # Closing the input is enough: the interrupted wait continues, and ends with the server.
            self.process.stdin.close()

        told, tells = os.pipe()
        os.set_blocking(tells, False)
        signal.signal(signal.SIGTERM, terminate)
        others = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
        if others != -1:
            # The program's event loop gets signals through this descriptor and does not block in a call.
            signal.set_wakeup_fd(others)
            return
        threading.Thread(target=self.end_what_waits, args=(told, handled), daemon=True).start()

    def end_what_waits(self, told, handled):
        """Ends the program on SIGTERM if the main thread is blocked in a call, in which case Python runs no signal handler.
        Stopping the server ends a step in progress. The program exits even if the main thread is still blocked, because a
        client's session may wait for the stopped server."""
        while os.read(told, 1) != bytes([signal.SIGTERM]):
            pass
        if not handled.wait(HANDLER_DEADLINE):
            self.stop()
            time.sleep(HANDLER_DEADLINE)
            os._exit(128 + signal.SIGTERM)

    def join(self):
        self.joined = True
        status = self.process.wait()
        if status != 0:
            raise RuntimeError(f"anabranch run: the server of {self.name} ended with {status}")

    def stop(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(STOP_DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def load_hidden():
    """Loads the next `sitecustomize` on the path, which this one hides, if there is one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "ANABRANCH_RUN_SERVER" in os.environ:
    sys.meta_path.insert(0, ServerFinder())
load_hidden()
