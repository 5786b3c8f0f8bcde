"""One replica of a synchronous job, with TensorFlow's SyncReplicasOptimizer and MonitoredTrainingSession. The other
replica is ours: see tests/joint_training.rs."""
import argparse

import numpy as np
import tensorflow.compat.v1 as tf

parser = argparse.ArgumentParser()
parser.add_argument("--target", required=True)
parser.add_argument("--task", type=int, required=True)
parser.add_argument("--chief", action="store_true")
parser.add_argument("--steps", type=int, required=True)
flags = parser.parse_args()

tf.disable_v2_behavior()
tf.enable_resource_variables()
tf.logging.set_verbosity(tf.logging.ERROR)

with tf.device(tf.train.replica_device_setter(1, worker_device=f"/job:worker/task:{flags.task}")):
    step = tf.train.get_or_create_global_step()
    w = tf.get_variable("w", [2], initializer=tf.constant_initializer(0.5))
    target = tf.constant([-1.0, 3.0])
    loss = tf.reduce_sum(tf.square(w - target))
    optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.125), 2, total_num_replicas=2)
    train = optimizer.minimize(loss, global_step=step)

hooks = [optimizer.make_session_run_hook(flags.chief, num_tokens=0), tf.train.StopAtStepHook(last_step=flags.steps)]
scaffold = tf.train.Scaffold(saver=tf.train.Saver(sharded=False))
with tf.train.MonitoredTrainingSession(
    flags.target, flags.chief, hooks=hooks, scaffold=scaffold, max_wait_secs=60, stop_grace_period_secs=5,
    save_checkpoint_secs=None, save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None,
) as session:
    count = 0
    while not session.should_stop():
        session.run(train)
        count += 1
print("ok", count, flush=True)
