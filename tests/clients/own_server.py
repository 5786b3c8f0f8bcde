"""Scripts in the style of tutorials: each task starts its own server; the ps joins it, the workers train.

    python own_server.py --job_name=worker --task_index=0 --ps_hosts=HOST:PORT --worker_hosts=HOST:PORT
    python own_server.py --script=monitored --folder=FOLDER …   # MonitoredTrainingSession, with checkpoints
    python own_server.py --script=distribute …                  # the server class by its name in TensorFlow 2
    python own_server.py --script=local                         # servers of one process each
    python own_server.py --script=defaults                      # the server's configuration for sessions without one
    python own_server.py --script=deadlines                     # the server's deadline for steps without one
    python own_server.py --script=waits                         # a step that never ends
"""
import argparse
import faulthandler
import threading
import time

import tensorflow
import tensorflow.compat.v1 as tf

from job import wait

tf.disable_v2_behavior()


def start(flags, server_class=tf.train.Server):
    """Starts this task's server. Returns the cluster and the server on a worker; a ps serves and exits here."""
    cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")})
    server = server_class(cluster, job_name=flags.job_name, task_index=flags.task_index)
    assert server.server_def.job_name == flags.job_name
    if flags.job_name == "ps":
        server.join()
        print("the server has been stopped")
        raise SystemExit
    return cluster, server


def train(flags, server_class=tf.train.Server):
    """Runs three steps that increment a variable on the ps."""
    cluster, server = start(flags, server_class)
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        steps = tf.get_variable("steps", [], tf.int32, tf.zeros_initializer())
        step = steps.assign_add(1)
        init = tf.global_variables_initializer()
    with tf.Session(server.target) as session:
        session.run(init)
        for _ in range(3):
            done = session.run(step)
        print(f"trained on {server.target}, steps {done}")


def distribute(flags):
    """The script `train` with the server class of TensorFlow 2."""
    train(flags, tensorflow.distribute.Server)


def monitored(flags):
    """Trains to the last step, from the newest checkpoint if there is one. Worker 0 is the chief, which saves."""
    cluster, server = start(flags)
    here = f"/job:worker/task:{flags.task_index}"
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=here)):
        x = tf.random_normal([16, 3], seed=1)
        w = tf.get_variable("w", [3, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w - [[1.0], [-2.0], [0.5]])))
        global_step = tf.train.get_or_create_global_step()
        step = tf.train.GradientDescentOptimizer(0.05).minimize(loss, global_step)
    hooks = [tf.train.StopAtStepHook(last_step=flags.last_step)]
    config = tf.ConfigProto(device_filters=["/job:ps", here])
    chief, taken = flags.task_index == 0, 0
    if not chief:
        # Waits here, because a session that opens before the chief has initialised sleeps for half a minute.
        missing = tf.report_uninitialized_variables()
        with tf.Session(server.target, config=config) as session:
            wait(lambda: len(session.run(missing)) == 0, "the chief initialises")
            wait(lambda: session.run(global_step) > flags.first_step, "the chief takes the first step")
    with tf.train.MonitoredTrainingSession(
        server.target, chief, flags.folder, hooks=hooks, save_checkpoint_steps=20, config=config, max_wait_secs=60
    ) as session:
        first, last = session.run([global_step, loss])
        while not session.should_stop():
            _, last = session.run([step, loss])
            taken += 1
    print(f"worker {flags.task_index} trained from step {first}, {taken} steps of its own, loss {last:.4f}")
    if chief:
        saved = tf.train.load_variable(tf.train.latest_checkpoint(flags.folder), "global_step")
        print(f"saved at step {saved}")


def local(_):
    """Two servers of one process each, which do not share state."""
    servers = [tf.train.Server.create_local_server() for _ in range(2)]
    assert servers[0].target != servers[1].target
    count = tf.get_variable("count", [], tf.int32, tf.zeros_initializer())
    add = count.assign_add(1)
    for times, server in enumerate(servers, 1):
        with tf.Session(server.target) as session:
            session.run(count.initializer)
            for _ in range(times):
                session.run(add)
            names = [device.name for device in session.list_devices()]
            assert "/job:localhost/replica:0/task:0/device:CPU:0" in names, names
    counts = []
    for server in servers:
        with tf.Session(server.target) as session:
            counts.append(int(session.run(count)))
    print(f"counted {counts} on two local servers")


def defaults(_):
    """Soft placement of an op on a missing device follows the server's configuration in sessions without one. The server's
    device filters do not apply to sessions."""
    soft = tf.ConfigProto(allow_soft_placement=True, device_filters=["/job:none"])
    with tf.device("/device:GPU:7"):
        three = tf.add(1, 2, name="three")
    for name, config in (("allowed", soft), ("not set", None)):
        server = tf.train.Server.create_local_server(config=config)
        for asked, of_session in (("no", None), ("an empty", tf.ConfigProto()), ("a soft", soft)):
            try:
                with tf.Session(server.target, config=of_session) as session:
                    answer = f"ran: {session.run(three)}"
            except tf.errors.InvalidArgumentError as error:
                assert "Cannot assign a device for operation three" in error.message, error.message
                answer = "refused"
            print(f"soft placement {name} by the server, {asked} configuration of the session: {answer}")


def deadlines(_):
    """A step without a deadline has the server's. If the deadline failed to end it, this process would end itself."""
    faulthandler.dump_traceback_later(20, exit=True)
    server = tf.train.Server.create_local_server(config=tf.ConfigProto(operation_timeout_in_ms=300))
    element = tf.FIFOQueue(1, tf.int32).dequeue()
    for asked, of_session in (("no", None), ("a longer", tf.ConfigProto(operation_timeout_in_ms=3000))):
        started = time.monotonic()
        try:
            with tf.Session(server.target, config=of_session) as session:
                session.run(element)
        except tf.errors.DeadlineExceededError:
            waited = "the server's" if time.monotonic() - started < 1.5 else "the session's"
            print(f"a server with a deadline, {asked} deadline of the session: {waited} held")


def waits(_):
    """A step that never ends; the process ends by a signal, or after a minute."""
    faulthandler.dump_traceback_later(60, exit=True)
    server = tf.train.Server.create_local_server()
    begun = tf.get_variable("begun", [], tf.int32, tf.zeros_initializer())
    with tf.control_dependencies([begun.assign_add(1)]):
        element = tf.FIFOQueue(1, tf.int32).dequeue()
    graph = tf.get_default_graph()

    def report():
        with tf.Session(server.target, graph=graph) as other:
            wait(lambda: other.run(begun) == 1, "the step begins")
        print("waits in a step", flush=True)

    with tf.Session(server.target) as session:
        session.run(begun.initializer)
        threading.Thread(target=report, daemon=True).start()
        session.run(element)


SCRIPTS = {script.__name__: script for script in (train, monitored, distribute, local, defaults, deadlines, waits)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", choices=SCRIPTS, default="train")
    parser.add_argument("--ps_hosts")
    parser.add_argument("--worker_hosts")
    parser.add_argument("--job_name")
    parser.add_argument("--task_index", type=int)
    parser.add_argument("--folder", help="the folder of checkpoints")
    parser.add_argument("--first_step", type=int, default=0, help="the global step at which the chief begins; the other workers wait until it is exceeded")
    parser.add_argument("--last_step", type=int, default=50)
    flags = parser.parse_args()
    SCRIPTS[flags.script](flags)


main()
