"""A script that finds its cluster in TF_CONFIG, as Kubernetes operators set it and as `anabranch run` does under `mpiexec`.

    mpiexec -n 2 anabranch run -- python launched.py

Each worker starts its server, and adds its number to a sum of all workers.
"""
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
cluster = resolver.cluster_spec()
task, workers = resolver.task_id, cluster.num_tasks("worker")
server = tf.train.Server(cluster, job_name=resolver.task_type, task_index=task)

with tf.device(f"/job:worker/task:{task}/device:CPU:0"):
    total = tf.raw_ops.CollectiveReduceV2(
        input=tf.constant(10.0**task), group_size=workers, group_key=1, instance_key=1, merge_op="Add",
        final_op="Id", ordering_token=[])
with tf.device("/job:worker/task:0"):
    ended = tf.FIFOQueue(workers, [tf.int32], shared_name="ended")
    end, wait = ended.enqueue(task), ended.dequeue()
with tf.Session(server.target) as session:
    print(f"task {task} of {workers}: the sum is {session.run(total):.0f}", flush=True)
    session.run(end)
    # The server of worker 0 has the queue, so this process goes last.
    for _ in range(workers if task == 0 else 0):
        session.run(wait)
