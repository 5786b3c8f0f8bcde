"""In-graph replication: one client, a tower on each worker, gradients averaged on the variables' device."""
import tensorflow.compat.v1 as tf

from job import classifier, digits


def run(job):
    with tf.device("/job:ps/task:0"):
        images, labels = tf.placeholder(tf.float32, [128, 784]), tf.placeholder(tf.int64, [128])
        optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
    towers, losses = [], []
    for i, (x, y) in enumerate(zip(tf.split(images, 2), tf.split(labels, 2))):
        setter = tf.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{i}")
        with tf.device(setter), tf.variable_scope("model", reuse=i > 0), tf.name_scope(f"tower_{i}"):
            _, loss, _ = classifier(x, y)
            towers.append(optimizer.compute_gradients(loss))
            losses.append(loss)
    with tf.device("/job:ps/task:0"):
        averaged = [
            (tf.reduce_mean(tf.stack([g for g, _ in pairs]), 0), pairs[0][1]) for pairs in zip(*towers)
        ]
        train = optimizer.apply_gradients(averaged)
        loss = tf.add_n(losses) / 2
    x, y = digits(1280)
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        history = []
        for step in range(40):
            at = step * 128 % 1280
            history.append(session.run([loss, train], {images: x[at : at + 128], labels: y[at : at + 128]})[0])
        assert history[-1] < history[0] / 5, history
        return {"loss": history, "weights": session.run(tf.trainable_variables()[0])}
