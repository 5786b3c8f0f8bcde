"""Checks that a failure of one member of a group reaches the members in the sessions of other masters at once, by name,
and that the members can meet again. Prints `ok` and a name for each check.

    python failed_collectives.py --server target/release/anabranch-worker
"""
import argparse
import shlex
import threading
import time

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import collective_ops

from workers import Workers

tf.disable_v2_behavior()

WORKERS = 3
# Longest time in seconds between a failure and the errors of all clients. On an idle machine it is less than one second;
# without the reports between the sessions it would be the deadline of the steps, 30 s.
AT_ONCE = 5.0
# Longest time in seconds for which a member waits that has a timeout of two seconds.
TIMED_OUT = 5.0
# Time in seconds after which a member that waits asks the others.
STALL_WARN = 2


class Member:
    """A client with a session of its own, whose master is its own worker."""

    def __init__(self, target, rank, key, timeout=0):
        self.graph = tf.Graph()
        with self.graph.as_default(), tf.device(f"/job:worker/task:{rank}/device:CPU:0"):
            self.divisor = tf.placeholder(tf.int32, [])
            x = tf.cast(6 // self.divisor, tf.float32) * tf.ones([4])
            self.sum = collective_ops.all_reduce_v2(x, WORKERS, key, key, "Add", "Id", timeout=timeout)
        self.target, self.session = target, tf.Session(target, graph=self.graph)

    def run(self, divisor=1):
        options = tf.RunOptions(timeout_in_ms=30000)
        return self.session.run(self.sum, {self.divisor: divisor}, options=options)

    def reconnect(self):
        try:
            self.session.close()
        except tf.errors.AbortedError:
            pass  # The master has restarted, and has forgotten the session.
        self.session = tf.Session(self.target, graph=self.graph)


def together(*calls):
    """Runs the calls at once. Returns each call's result or error, and the time of its end."""
    ends = [None] * len(calls)

    def work(i):
        try:
            result = calls[i]()
        except tf.errors.OpError as error:
            result = error
        ends[i] = (result, time.monotonic())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def succeed(members):
    """Runs one step of all members, and checks its sum."""
    for result, _ in together(*(member.run for member in members)):
        assert not isinstance(result, Exception), result
        assert result[0] == 6 * WORKERS, result


def members_of(servers, key, timeout=0):
    return [Member(servers.targets[rank], rank, key, timeout) for rank in range(WORKERS)]


def close(members):
    for member in members:
        member.session.close()


def failing_input(servers):
    """A member whose input fails ends the step of the others, before and after the group is known."""
    members = members_of(servers, 1)
    for _ in range(2):
        began = []

        def fail():
            time.sleep(1)
            began.append(time.monotonic())
            return members[1].run(0)

        for error, ended in together(members[0].run, fail, members[2].run):
            assert isinstance(error, Exception) and "division by zero" in str(error).lower(), error
            assert ended - began[0] < AT_ONCE, ended - began[0]
        for _ in range(3):
            succeed(members)
    close(members)


def missing_member(servers):
    """The error of a member that waits in vain for another names the members that have come."""
    members = members_of(servers, 2, timeout=2)
    began = time.monotonic()
    for error, ended in together(members[0].run, members[1].run):
        assert isinstance(error, tf.errors.DeadlineExceededError), error
        for text in ["CollectiveReduceV2", "2 of 3 members have come", "task:0", "task:1", "waited 2.0 s"]:
            assert text in str(error), (text, error)
        assert ended - began < TIMED_OUT, ended - began
    succeed(members)
    began = time.monotonic()
    for error, ended in together(members[0].run, members[1].run):
        assert isinstance(error, tf.errors.DeadlineExceededError), error
        assert "waits for /job:worker/replica:0/task:2" in str(error), error
        assert ended - began < TIMED_OUT, ended - began
    # The member that comes too late learns the failure of its step, so that all can begin anew.
    (late, _), = together(members[2].run)
    assert isinstance(late, Exception) and "waited 2.0 s" in str(late), late
    succeed(members)
    close(members)


def killed_member(servers):
    """Members that wait for a member whose process is killed learn its death at once, and meet it again later."""
    for killed in [2, 0]:
        members = members_of(servers, 3 + killed)
        succeed(members)
        others = [member for rank, member in enumerate(members) if rank != killed]
        times = []

        def kill():
            time.sleep(0.5)
            servers.kill(killed)
            times.append(time.monotonic())

        ends = together(*(member.run for member in others), kill)[:-1]
        for error, ended in ends:
            assert isinstance(error, Exception) and f"task:{killed}" in str(error), error
            assert ended - times[0] < AT_ONCE, ended - times[0]
        servers.restart(killed)
        for member in members:
            member.reconnect()
        succeed(members)
        close(members)


def member_that_leaves(servers):
    """A member whose session ends fails the step in which the others wait for it."""
    members = members_of(servers, 9)
    succeed(members)
    times = []

    def leave():
        time.sleep(0.5)
        members[1].session.close()
        times.append(time.monotonic())

    for error, ended in together(members[0].run, members[2].run, leave)[:-1]:
        assert isinstance(error, Exception) and "session of a member" in str(error), error
        assert ended - times[0] < AT_ONCE, ended - times[0]
    members[1].reconnect()
    succeed(members)
    close(members)


def restarted_client(servers):
    """Members that wait for a member whose client has restarted, without an end of its session, learn it within seconds,
    and meet its new session."""
    members = members_of(servers, 10)
    succeed(members)
    abandoned = members[1].session
    members[1].session = tf.Session(members[1].target, graph=members[1].graph)
    began = time.monotonic()
    ends = together(*(member.run for member in members))
    for error, ended in ends:
        assert isinstance(error, tf.errors.AbortedError), error
        assert ended - began < STALL_WARN + AT_ONCE, ended - began
    assert any("begun anew" in str(error) for error, _ in ends), ends
    succeed(members)
    abandoned.close()
    succeed(members)
    close(members)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("checks", nargs="*")
    flags = parser.parse_args()
    command = [*shlex.split(flags.server), "--stall-warn", str(STALL_WARN)]
    with Workers(command, WORKERS) as servers:
        for check in [failing_input, missing_member, killed_member, member_that_leaves, restarted_client]:
            if not flags.checks or check.__name__ in flags.checks:
                check(servers)
                print(f"ok {check.__name__}", flush=True)


if __name__ == "__main__":
    main()
