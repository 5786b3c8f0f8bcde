"""Synchronous replicas with accumulators and token queues; mutexes; Session.reset."""
import threading

import numpy as np
import tensorflow.compat.v1 as tf

from . import scenario


def replica(peer, task, name, replicas, aggregate):
    """Builds one replica's graph, whose variable is on the ps; returns its session and the ops to run."""
    graph = tf.Graph()
    with graph.as_default(), tf.device(tf.train.replica_device_setter(1, worker_device=f"/job:worker/task:{task}")):
        step = tf.train.create_global_step()
        w = tf.get_variable(f"{name}w", [2], initializer=tf.ones_initializer(), use_resource=False)
        x = tf.placeholder(tf.float32, [2])
        optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.5), replicas_to_aggregate=aggregate, total_num_replicas=replicas)
        train = optimizer.minimize(tf.reduce_sum(w * x), global_step=step)
        hook = optimizer.make_session_run_hook(is_chief=task == 0, num_tokens=0)
    return graph, hook, (w, x, train, step)


@scenario
def synchronous_replicas(peer):
    name = peer.name("sync")
    inputs = np.array([1.0, 2.0])

    def work(task):
        graph, hook, (_, x, train, _) = replica(peer, task, name, 2, 2)
        with graph.as_default():
            scaffold = tf.train.Scaffold(saver=tf.train.Saver(sharded=False))
            options = dict(is_chief=task == 0, hooks=[hook], scaffold=scaffold, stop_grace_period_secs=5, checkpoint_dir=None)
            options.update(save_checkpoint_secs=None, save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)
            with tf.train.MonitoredTrainingSession(peer.workers[task], **options) as session:
                for _ in range(3):
                    session.run(train, {x: inputs})

    tf.Session.reset(peer.target, ["ps", "worker"])
    threads = [threading.Thread(target=work, args=[task], daemon=True) for task in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a replica still waits"
    graph, _, (w, _, _, step) = replica(peer, 0, name, 2, 2)
    with graph.as_default(), peer.session() as session:
        steps = int(session.run(step))
        # Which replicas' gradients make a step is random, but all gradients are the same.
        peer.record("steps", 1 <= steps <= 3)
        peer.record("trained", np.array_equal(session.run(w), 1.0 - 0.5 * steps * inputs))


@scenario
def gradients_of_backup_replicas_are_dropped(peer):
    """The ops of SyncReplicasOptimizer one by one, if it aggregates the gradients of one of two replicas."""
    name = peer.name("backup")
    with tf.device("/job:ps/task:0"):
        gradients = tf.ConditionalAccumulator(tf.float32, shape=[2], shared_name=f"{name}grad")
        tokens = tf.FIFOQueue(-1, tf.int64, shapes=[[]], shared_name=f"{name}tokens")
        sparse = tf.SparseConditionalAccumulator(tf.float32, shape=[4, 2], shared_name=f"{name}rows")
    g = tf.placeholder(tf.float32, [2])
    step = tf.placeholder(tf.int64, [])
    apply = gradients.apply_grad(g, step)
    rows = sparse.apply_indexed_slices_grad(tf.IndexedSlices(tf.reshape(g, [1, 2]), tf.constant([3], tf.int64), tf.constant([4, 2], tf.int64)), step)
    with peer.session(0) as chief, peer.session(1) as worker:
        taken = peer.background(chief.make_callable([gradients.take_grad(1), sparse.take_indexed_slices_grad(1).values]))
        worker.run([apply, rows], {g: [1.0, 2.0], step: 0})
        peer.record("taken", taken.join())
        chief.run(tokens.enqueue_many([tf.fill([2], tf.constant(1, tf.int64))]))
        chief.run([apply, rows], {g: [5.0, 5.0], step: 0})
        peer.record("stale", chief.run([gradients.num_accumulated(), sparse.num_accumulated()]))
        peer.record("token", worker.run(tokens.dequeue()))
        worker.run([apply, rows], {g: [3.0, 4.0], step: 1})
        peer.record("fresh", chief.run([gradients.num_accumulated(), sparse.num_accumulated()]))


@scenario
def critical_sections(peer):
    section = tf.CriticalSection(shared_name=peer.name("m"))
    v = tf.get_variable(peer.name("v"), initializer=0, use_resource=True)
    add = [section.execute(lambda: v.assign_add(1, read_value=False) or tf.no_op()) for _ in range(4)]
    with peer.session() as s:
        s.run(v.initializer)
        for _ in range(3):
            s.run(add)
        peer.record("added", s.run(v))


@scenario
def reset_clears_state_and_ends_waiting_steps(peer):
    q = tf.FIFOQueue(2, tf.int32, shapes=[[]], shared_name=peer.name("q"), name="forgotten")
    dequeue, size, enqueue = q.dequeue(), q.size(), q.enqueue(3)
    session = tf.Session(peer.target)
    session.run(enqueue)
    session.run(dequeue)
    waits = peer.background(lambda: type_of(lambda: session.run(dequeue)))
    session.run(enqueue)
    waits.join()
    session.run(enqueue)
    tf.Session.reset(peer.target, ["worker"])
    peer.record("its session", type_of(lambda: session.run(size)))
    with peer.session() as s:
        peer.record("empty", s.run(size))


def type_of(f):
    try:
        f()
    except tf.errors.OpError as error:
        return type(error).__name__
    return None
