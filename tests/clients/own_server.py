"""A script as tutorials have it: each task starts its server itself; the ps joins, the worker trains."""
import argparse

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ps_hosts")
    parser.add_argument("--worker_hosts")
    parser.add_argument("--job_name")
    parser.add_argument("--task_index", type=int)
    flags = parser.parse_args()
    cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=flags.job_name, task_index=flags.task_index)
    assert server.server_def.job_name == flags.job_name
    if flags.job_name == "ps":
        server.join()
        print("the server has been stopped")
        return
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        steps = tf.get_variable("steps", [], tf.int32, tf.zeros_initializer())
        step = steps.assign_add(1)
        init = tf.global_variables_initializer()
    with tf.Session(server.target) as session:
        session.run(init)
        for _ in range(3):
            done = session.run(step)
        print(f"trained on {server.target}, steps {done}")


main()
