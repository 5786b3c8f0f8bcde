"""Test steps while the network link of a parameter server is down, with each task on its own host (network.py).

    python link_cuts.py path/to/worker-binary

A client on the worker's host adds one to every element of 10 MB on the server, with a deadline of 3 s for each step,
while the server's link goes down and up again, for less and for more than the deadline. Then it reads the variable: all
elements must be equal, and each answered step must be included exactly once. Finally the link goes down permanently during
steps without a deadline that transfer a tensor from the server or wait for one. The script prints errors and durations, and
fails if a value is wrong, if an error does not name the server, or if a step took too long.

The test is repeated with a standby of the server on a third host (`--ps-replicas 2`): the primary's link goes down, the
standby takes over, the link comes up again, and the former primary must not serve any client.
"""
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
DEADLINE_S = 3.0
CUTS_S = [0.3, 1.0, 2.0, 5.0, 9.0]
# After a cut, steps are answered again within this time plus the length of the cut, because TCP retransmits at growing
# intervals.
BACK_S = 4.0
# Time within which a standby has taken over and steps are answered again.
TAKES_OVER_S = 20.0
# Time after which a silent host is considered dead.
DEAD_S = 40.0


def client(target, what):
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_v2_behavior()
    with tf.device("/job:ps/task:0/cpu:0"):
        there = tf.get_variable("there", [2_500_000], initializer=tf.zeros_initializer())
        dequeue = tf.FIFOQueue(1, [tf.float32]).dequeue()
    with tf.device("/job:worker/task:0/cpu:0"):
        ones = tf.ones([2_500_000]) * tf.random_uniform([], 1, 1)
        wait = tf.identity(dequeue).op
    add = tf.assign_add(there, ones).op
    deadline = int(DEADLINE_S * 1000) if what == "add" else 0
    connect = lambda: tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=deadline))
    session = connect()
    session.run(there.initializer)
    session.run(add), session.run(add)
    print("READY", flush=True)
    if what == "add":
        keep_adding(tf, connect, session, there, add)
    else:
        until_it_fails(tf, session, wait if what == "wait for good" else add)


def keep_adding(tf, connect, session, there, add):
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    answered, failed, last_answer, longest = 2, 0, time.monotonic(), 0.0
    while not told.is_set():
        start = time.monotonic()
        try:
            session.run(add)
            answered, last_answer = answered + 1, time.monotonic()
        except tf.errors.OpError as error:
            failed += 1
            say(error)
            # The standby is the server from here on.
            session = connect() if isinstance(error, tf.errors.AbortedError) else session
        took = time.monotonic() - start
        longest = max(longest, took)
        assert took < DEADLINE_S + 2, f"a step took {took:.1f} s"
    assert time.monotonic() - last_answer < BACK_S, "steps are not answered again"
    value = session.run(there)
    assert (value == value[0]).all(), "elements differ"
    assert answered <= value[0] <= answered + failed, f"{value[0]} after {answered} answered, {failed} failed"
    print(f"{answered} answered, {failed} failed, {int(value[0])} done; the longest took {longest:.1f} s", flush=True)


def until_it_fails(tf, session, step):
    try:
        while True:
            start = time.monotonic()
            session.run(step)
    except tf.errors.OpError as error:
        say(error)
        took = time.monotonic() - start
        print(f"failed after {took:.1f} s", flush=True)
        assert took < DEAD_S, "that is too long"


def say(error):
    lines = [line for line in error.message.splitlines() if line and not line.startswith("Graph execution error")]
    print(f"  {type(error).__name__}: {' / '.join(lines)[:400]}", flush=True)
    assert "job:ps" in error.message, "the error names nobody"


def case(server, cut, what):
    """Tests a link that is down for `cut` seconds, or permanently if `cut` is None."""
    from cluster import Cluster
    from network import DEVICE, Network, ip

    print(f"{what}, down for {cut} s:" if cut else f"{what}:", flush=True)
    with Network(2) as network, Cluster([server], {"ps": 1, "worker": 1}, network=network) as cluster:
        command = [sys.executable, __file__, "--client", cluster.target(), what]
        with cluster.inside("worker", 0):
            job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert job.stdout.readline() == "READY\n"
        time.sleep(1)
        with cluster.inside("ps", 0):
            ip("link", "set", DEVICE, "down")
            if cut:
                time.sleep(cut)
                ip("link", "set", DEVICE, "up")
        if cut:
            time.sleep(BACK_S + cut)
        said, _ = job.communicate("\n", timeout=DEAD_S + 20)
        print(said, end="", flush=True)
        if job.returncode != 0:
            sys.exit(f"failed; what the worker said: {open(cluster.logs['worker', 0]).read()[-2000:]}")


def standby_case(server):
    from cluster import Cluster
    from network import DEVICE, Network, ip

    print("add, with a standby that takes over:", flush=True)
    with Network(3) as network:
        cluster = Cluster([server, "--ps-replicas", "2"], {"ps": 2, "worker": 1}, network=network)
        wait_for, cluster.wait_for = cluster.wait_for, lambda _: None  # a standby does not listen
        with cluster:
            for job in ("ps", "worker"):
                with cluster.inside(job, 0):
                    wait_for(cluster.spec[job][0])
            until_it_says(cluster, ("ps", 1), " is a standby of ")
            with cluster.inside("worker", 0):
                command = [sys.executable, __file__, "--client", cluster.target(), "add"]
                job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert job.stdout.readline() == "READY\n"
            time.sleep(1)
            with cluster.inside("ps", 0):
                ip("link", "set", DEVICE, "down")
                time.sleep(TAKES_OVER_S)
                ip("link", "set", DEVICE, "up")
            time.sleep(TAKES_OVER_S)
            said, _ = job.communicate("\n", timeout=DEAD_S + 20)
            print(said, end="", flush=True)
            for task in (("ps", 0), ("ps", 1), ("worker", 0)) if job.returncode else ():
                print(task, open(cluster.logs[task]).read()[-2000:])
            if job.returncode:
                sys.exit("failed")


def until_it_says(cluster, task, what):
    deadline = time.monotonic() + 20
    while what not in open(cluster.logs[task]).read():
        assert time.monotonic() < deadline, f"{task} does not say '{what}'"
        time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1] == "--client":
        client(*sys.argv[2:])
    else:
        for cut in CUTS_S:
            case(sys.argv[1], cut, "add")
        for what in ("add for good", "wait for good"):
            case(sys.argv[1], None, what)
        standby_case(sys.argv[1])
