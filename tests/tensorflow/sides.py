"""Two sides that run the same probes, each in a child process that may crash: TensorFlow runs in the child itself; our
server runs in another process, of which the child is a client."""
import collections
import json
import multiprocessing
import os
import re
import resource
import socket
import subprocess
import time

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import graph_pb2

from probe import config, copied

# Children are forked from a process that has imported TensorFlow without starting threads, which a fork would not copy.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sides"])
# The process that forks finds the module here.
os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))

# Address space of each side in bytes, so that calls that need more memory fail on both sides on every machine.
MEMORY = 4 << 30
# Number of probes that are added to a graph before a new session is opened.
PROBES_OF_A_GRAPH = 40
# Deadline of a step in seconds; a side that does not answer for 10 s longer is restarted.
STEP_S = 30

# The result of a probe that fails.
Failure = collections.namedtuple("Failure", "kind message")
DIED, HUNG = "its process ends", "it does not answer"


def limit_memory():
    """Limits the address space of this process and its children, and disables core dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Server:
    """Our server process, which can be started again."""

    def __init__(self, program, log):
        self.program, self.log, self.process = program, log, None
        self.start()

    def start(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = "127.0.0.1:%d" % free.getsockname()[1]
        task = {"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
        self.process = subprocess.Popen([self.program, "--stop-with-stdin"], env=environment, stdin=subprocess.PIPE, stderr=self.log)
        self.target = f"grpc://{address}"
        deadline = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", int(address.split(":")[1]))):
            assert self.process.poll() is None and time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)

    def has_ended(self):
        """Returns whether the process ends within 10 s: a crashing server may take a while to end."""
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self):
        self.process.kill()
        self.process.wait()


class Side:
    """A child process that runs probes, and their results; the child is replaced when it ends or hangs."""

    def __init__(self, probes, server=None):
        self.probes, self.server = probes, server
        self.results = []
        self.begin(0)

    def begin(self, first):
        self.pipe, theirs = PROCESSES.Pipe(duplex=False)
        target = self.server.target if self.server else ""
        self.child = PROCESSES.Process(target=work, args=(target, self.probes[first:], theirs), daemon=True)
        self.child.start()
        theirs.close()
        self.last_received = time.monotonic()

    def is_done(self):
        return len(self.results) == len(self.probes)

    def receive(self):
        """Receives the results that the child has sent, and detects a child or server that has died or hangs. Called when
        the pipe is readable, and once a second."""
        try:
            while not self.is_done() and self.pipe.poll():
                result = self.pipe.recv()
                self.last_received = time.monotonic()
                if isinstance(result, Failure) and result.kind == "UnavailableError" and self.server and self.server.has_ended():
                    self.server.start()
                    return self.give_up(DIED)
                self.results.append(result)
        except (EOFError, ConnectionResetError):
            return self.give_up(DIED)
        if not self.is_done() and time.monotonic() > self.last_received + STEP_S + 10:
            if self.server:
                self.server.stop()
                self.server.start()
            self.give_up(HUNG)

    def give_up(self, why):
        self.end()
        self.results.append(Failure(why, ""))
        self.begin(len(self.results))

    def end(self):
        self.child.kill()
        self.child.join()
        self.pipe.close()


def run_both(sides):
    """Waits for the results of all sides and returns them."""
    while not all(side.is_done() for side in sides):
        multiprocessing.connection.wait([side.pipe for side in sides if not side.is_done()], timeout=1)
        for side in sides:
            if not side.is_done():
                side.receive()
    for side in sides:
        side.end()
    return [side.results for side in sides]


def work(target, probes, pipe):
    """The child process: runs the probes and sends the values of each, or its failure."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    steps = Steps(target)
    for at, probe in enumerate(probes):
        if at and at % PROBES_OF_A_GRAPH == 0:
            steps = Steps(target)
        result, usable = steps.run(probe)
        if not usable:
            steps = Steps(target)
        pipe.send(result)
    pipe.close()


class Steps:
    """A session whose graph is extended by each probe."""

    def __init__(self, target):
        self.graph = tf.Graph()
        self.session = tf.Session(target, graph=self.graph, config=config())
        self.options = tf.RunOptions(timeout_in_ms=STEP_S * 1000)
        self.producer = None

    def run(self, probe):
        """Returns the probe's values or failure, and whether the session can be used again."""
        if self.producer not in (None, probe.producer):
            self.__init__(self.session.sess_str)
        self.producer = probe.producer
        definition = graph_pb2.GraphDef(node=probe.nodes)
        definition.versions.producer = probe.producer
        with self.graph.as_default():
            try:
                tf.import_graph_def(definition, name="")
            except ValueError as error:
                return failure(error), True
        try:
            self.session._extend_graph()
        except tf.errors.OpError as error:
            return failure(error), False
        try:
            return self.values(probe), True
        except (tf.errors.OpError, ValueError) as error:
            return failure(error), True

    def values(self, probe):
        if probe.first:
            self.step(probe.first, probe.first_feeds)
        steps = []
        for _ in range(probe.steps):
            outputs = self.step(probe.fetches, probe.feeds)
            steps.append((outputs, self.step(probe.reads, {}) if probe.reads else []))
        return steps

    def step(self, names, feeds):
        fetched = [self.graph.get_tensor_by_name(n) if ":" in n else self.graph.get_operation_by_name(n) for n in names]
        return self.session.run(fetched, copied(feeds), options=self.options)


def failure(error):
    """Converts an error to a Failure, without the node and location in its message."""
    message = " ".join(str(getattr(error, "message", None) or error).split())
    message = re.sub(r"Graph execution error: |Detected at node .*? Node: '\S+' |\[\[.*", "", message)
    return Failure(type(error).__name__, message[:300])
