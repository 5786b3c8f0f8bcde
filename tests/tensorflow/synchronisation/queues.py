"""Queues: order, capacity, closing, checks of arguments, sharing by name."""
import numpy as np
import tensorflow.compat.v1 as tf

from . import scenario, type_of, until


@scenario
def a_queue_is_first_in_first_out(peer):
    q = tf.FIFOQueue(10, [tf.float32, tf.string], shapes=[[], [2]], shared_name=peer.name("q"))
    enqueue = q.enqueue((1.5, ["a", "b"]))
    many = q.enqueue_many(([2.5, 3.5, 4.5], [["c", "d"], ["e", "f"], ["g", "h"]]))
    with peer.session() as s:
        s.run(enqueue)
        s.run(many)
        peer.record("size", s.run(q.size()))
        peer.record("one", s.run(q.dequeue()))
        peer.record("two", s.run(q.dequeue_many(2)))
        peer.record("none", s.run(q.dequeue_many(0)))
        peer.record("negative", lambda: s.run(q.dequeue_many(tf.constant(-1) * tf.constant(1))))
        peer.record("up to", s.run(q.dequeue_up_to(1)))
        peer.record("size", s.run(q.size()))
        peer.record("closed", s.run(q.is_closed()))
        s.run(q.close())
        peer.record("closed", s.run(q.is_closed()))
        peer.record("enqueue", lambda: s.run(enqueue))
        peer.record("enqueue many", lambda: s.run(many))
        peer.record("dequeue", lambda: s.run(q.dequeue()))
        peer.record("dequeue many", lambda: s.run(q.dequeue_many(2)))
        peer.record("dequeue up to", lambda: s.run(q.dequeue_up_to(2)))
        peer.record("dequeue none", lambda: s.run(q.dequeue_many(0)))
        peer.record("close again", lambda: s.run(q.close()))
        peer.record("cancel again", lambda: s.run(q.close(cancel_pending_enqueues=True)))
        peer.record("size", s.run(q.size()))


@scenario
def messages_name_the_node(peer):
    run = peer.name("node")
    q = tf.FIFOQueue(10, tf.float32, name=f"{run}q")
    shuffle = tf.RandomShuffleQueue(10, 2, tf.float32, name=f"{run}r")
    pad = tf.PaddingFIFOQueue(10, tf.float32, shapes=[[None]], name=f"{run}p")
    priority = tf.PriorityQueue(10, tf.float32, shapes=[[]], name=f"{run}o")
    with peer.session() as s:
        for queue in (q, shuffle, pad, priority):
            s.run(queue.close())
            peer.record("dequeue", lambda: s.run(queue.dequeue()))
            peer.record("close", lambda: s.run(queue.close()))


@scenario
def elements_of_wrong_types_or_shapes_are_refused(peer):
    q = tf.FIFOQueue(10, [tf.float32, tf.int32], shapes=[[], [2]], shared_name=peer.name("q"))
    x = tf.placeholder(tf.float32)
    y = tf.placeholder(tf.int32)
    raw = tf.raw_ops
    with peer.session() as s:
        enqueue = raw.QueueEnqueueV2(handle=q.queue_ref, components=[x, y])
        peer.record("shape", lambda: s.run(enqueue, {x: [1.0], y: [1, 2]}))
        peer.record("shape of the second", lambda: s.run(enqueue, {x: 1.0, y: [1, 2, 3]}))
        one = raw.QueueEnqueueV2(handle=q.queue_ref, components=[x])
        peer.record("count", lambda: s.run(one, {x: 1.0}))
        swapped = raw.QueueEnqueueV2(handle=q.queue_ref, components=[y, x])
        peer.record("type", lambda: s.run(swapped, {x: 1.0, y: [1, 2]}))
        many = raw.QueueEnqueueManyV2(handle=q.queue_ref, components=[x, y])
        peer.record("many", lambda: s.run(many, {x: [1.0, 2.0], y: [[1, 2]]}))
        peer.record("many of another shape", lambda: s.run(many, {x: [1.0], y: [[1]]}))
        wrong = raw.QueueDequeueV2(handle=q.queue_ref, component_types=[tf.int32, tf.int32])
        peer.record("dequeue of another type", lambda: s.run(wrong))
        peer.record("size", s.run(q.size()))


@scenario
def checks_of_queues_without_shapes(peer):
    q = tf.FIFOQueue(10, [tf.float32, tf.int32], shared_name=peer.name("q"))
    x = tf.placeholder(tf.float32)
    y = tf.placeholder(tf.int32)
    raw = tf.raw_ops
    with peer.session() as s:
        s.run(q.enqueue((x, y)), {x: [1.0], y: 7})
        s.run(q.enqueue((x, y)), {x: [[1.0, 2.0]], y: [7]})
        many = raw.QueueEnqueueManyV2(handle=q.queue_ref, components=[x, y])
        peer.record("many", lambda: s.run(many, {x: [1.0, 2.0], y: [[1, 2]]}))
        s.run(many, {x: [[1.0], [2.0]], y: [5, 6]})
        for _ in range(4):
            peer.record("one", s.run(q.dequeue()))
        dequeue = raw.QueueDequeueManyV2(handle=q.queue_ref, n=1, component_types=[tf.float32, tf.int32])
        peer.record("dequeue many", lambda: s.run(dequeue))
        up_to = raw.QueueDequeueUpToV2(handle=q.queue_ref, n=1, component_types=[tf.float32, tf.int32])
        peer.record("dequeue up to", lambda: s.run(up_to))


@scenario
def order_of_a_seeded_shuffle(peer):
    q = tf.RandomShuffleQueue(100, 2, [tf.int32, tf.string], shapes=[[], []], seed=7, shared_name=peer.name("r"))
    with peer.session() as s:
        s.run(q.enqueue_many([list(range(20)), [str(i) for i in range(20)]]))
        for _ in range(5):
            peer.record("one", s.run(q.dequeue()))
        peer.record("many", s.run(q.dequeue_many(6)))
        s.run(q.enqueue_many([list(range(100, 110)), ["x"] * 10]))
        peer.record("up to", s.run(q.dequeue_up_to(8)))
        waits = peer.background(lambda: s.run(q.dequeue_many(10)))
        until(lambda: s.run(q.size()) == 2)
        s.run(q.close())
        peer.record("the rest", waits.join())
        peer.record("size", s.run(q.size()))
        peer.record("up to", s.run(q.dequeue_up_to(20)))
        peer.record("closed", lambda: s.run(q.dequeue()))
        peer.record("closed", lambda: s.run(q.dequeue_many(2)))
        peer.record("closed", lambda: s.run(q.enqueue((1, "a"))))


@scenario
def padding(peer):
    q = tf.PaddingFIFOQueue(100, [tf.int32, tf.string, tf.float32], shapes=[[None], [None, 2], []], shared_name=peer.name("p"))
    a, b, c = tf.placeholder(tf.int32), tf.placeholder(tf.string), tf.placeholder(tf.float32)
    enqueue = tf.raw_ops.QueueEnqueueV2(handle=q.queue_ref, components=[a, b, c])
    with peer.session() as s:
        for i in range(4):
            s.run(enqueue, {a: list(range(i)), b: np.full([3 - i, 2], str(i)), c: i})
        peer.record("one", s.run(q.dequeue()))
        peer.record("many", s.run(q.dequeue_many(3)))
        peer.record("none", s.run(q.dequeue_many(0)))
        peer.record("shape", lambda: s.run(enqueue, {a: [[1]], b: [["x", "y"]], c: 1.0}))
        peer.record("shape", lambda: s.run(enqueue, {a: [1], b: [["x"]], c: 1.0}))
        many = tf.raw_ops.QueueEnqueueManyV2(handle=q.queue_ref, components=[a, b, c])
        s.run(many, {a: [[1, 2], [3, 4]], b: [[["x", "y"]]] * 2, c: [1.0, 2.0]})
        peer.record("many shape", lambda: s.run(many, {a: [[1, 2], [3, 4]], b: [["x", "y"]] * 2, c: [1.0, 2.0]}))
        peer.record("many count", lambda: s.run(many, {a: [[1, 2]], b: [[["x", "y"]]] * 2, c: [1.0, 2.0]}))
        s.run(q.close())
        peer.record("too many", lambda: s.run(q.dequeue_many(3)))
        peer.record("up to", s.run(q.dequeue_up_to(3)))
        peer.record("closed", lambda: s.run(q.dequeue()))


@scenario
def priorities(peer):
    q = tf.PriorityQueue(100, [tf.string], shapes=[[]], shared_name=peer.name("o"))
    p = tf.placeholder(tf.int64)
    v = tf.placeholder(tf.string)
    enqueue = tf.raw_ops.QueueEnqueueV2(handle=q.queue_ref, components=[p, v])
    with peer.session() as s:
        order = [5, 3, 3, 9, -1, 3, 5, 3, 0, 9, 5, 3]
        for i, priority in enumerate(order[:6]):
            s.run(enqueue, {p: priority, v: str(i)})
        s.run(q.enqueue_many((tf.constant(order[6:], tf.int64), [str(i) for i in range(6, 12)])))
        peer.record("one", s.run(q.dequeue()))
        peer.record("many", s.run(q.dequeue_many(5)))
        s.run(enqueue, {p: 3, v: "last"})
        peer.record("rest", s.run(q.dequeue_up_to(7)))
        peer.record("shape", lambda: s.run(enqueue, {p: [3], v: "last"}))
        waits = peer.background(s.make_callable(q.dequeue_many(2)))
        s.run(enqueue, {p: 3, v: "later"})
        peer.record("nothing is taken before all is there", s.run(q.size()))
        s.run(enqueue, {p: 2, v: "sooner"})
        peer.record("in order", waits.join())
        s.run(q.close())
        peer.record("closed", lambda: s.run(q.dequeue()))
        peer.record("closed", lambda: s.run(q.dequeue_many(1)))


@scenario
def many_equal_priorities(peer):
    q = tf.PriorityQueue(-1, [tf.int32], shapes=[[]], shared_name=peer.name("o"))
    with peer.session() as s:
        priorities = [(i * 7919) % 5 for i in range(60)]
        s.run(q.enqueue_many((tf.constant(priorities, tf.int64), list(range(60)))))
        peer.record("order", s.run(q.dequeue_many(60)))


@scenario
def priorities_must_be_scalars(peer):
    q = tf.PriorityQueue(100, [tf.string], shapes=[()], shared_name=peer.name("o"))
    p = tf.placeholder(tf.int32)
    enqueue = tf.raw_ops.QueueEnqueueV2(handle=q.queue_ref, components=[p, "a"])
    with peer.session() as s:
        peer.record("type", lambda: s.run(enqueue, {p: 3}))


@scenario
def a_full_queue_blocks(peer):
    q = tf.FIFOQueue(2, tf.int32, shapes=[[]], shared_name=peer.name("q"))
    x = tf.placeholder(tf.int32, [None])
    many = q.enqueue_many(x)
    with peer.session() as s:
        blocked = peer.background(lambda: s.run(many, {x: [1, 2, 3, 4, 5]}))
        until(lambda: s.run(q.size()) == 2)
        peer.record("blocks", blocked.is_blocked())
        peer.record("many", s.run(q.dequeue_many(4)))
        peer.record("enqueued", blocked.join())
        peer.record("rest", s.run(q.dequeue()))
        # More elements than the queue's capacity.
        taker = peer.background(lambda: s.run(q.dequeue_many(6)))
        s.run(many, {x: [1, 2, 3]})
        until(lambda: s.run(q.size()) == 0)
        s.run(many, {x: [4, 5, 6]})
        peer.record("taken", taker.join())


@scenario
def closing_lets_pending_enqueues_through(peer):
    q = tf.FIFOQueue(1, tf.int32, shapes=[[]], shared_name=peer.name("q"))
    with peer.session() as s:
        s.run(q.enqueue(1))
        two, first = q.enqueue(2), q.dequeue()
        pending = peer.background(lambda: s.run(two))
        peer.record("first", s.run(first))
        peer.record("pending", pending.join())
        s.run(q.close())
        peer.record("second", s.run(q.dequeue()))
        peer.record("closed", lambda: s.run(q.dequeue()))


@scenario
def closing_cancels_pending_enqueues(peer):
    q = tf.FIFOQueue(1, tf.int32, shapes=[[]], shared_name=peer.name("q"))
    with peer.session() as s:
        peer.record("first", s.run(q.enqueue(1)))
        x = tf.placeholder(tf.int32, [None])
        pending = peer.background(lambda: s.run(q.enqueue_many(x), {x: [1, 2, 3]}))
        peer.record("one", s.run(q.dequeue()))
        until(lambda: s.run(q.size()) == 1)
        s.run(q.close(cancel_pending_enqueues=True))
        peer.record("pending", pending.join())
        peer.record("rest", s.run(q.dequeue()))
        peer.record("closed", lambda: s.run(q.dequeue()))
        peer.record("enqueue", lambda: s.run(q.enqueue(1)))


@scenario
def closing_fails_pending_dequeues(peer):
    q = tf.FIFOQueue(5, tf.int32, shapes=[[]], shared_name=peer.name("q"))
    with peer.session() as s:
        one = peer.background(lambda: s.run(q.dequeue()))
        s.run(q.close())
        peer.record("one", one.join())
    q = tf.FIFOQueue(5, tf.int32, shapes=[[]], shared_name=peer.name("q"))
    with peer.session() as s:
        s.run(q.enqueue_many([[1, 2]]))
        three = peer.background(lambda: s.run(q.dequeue_many(3)))
        until(lambda: s.run(q.size()) == 0)
        s.run(q.close())
        peer.record("three", three.join())
        peer.record("put back", s.run(q.dequeue_up_to(5)))
    q = tf.FIFOQueue(5, tf.int32, shapes=[[]], shared_name=peer.name("q"))
    with peer.session() as s:
        s.run(q.enqueue_many([[1, 2]]))
        three = peer.background(lambda: s.run(q.dequeue_up_to(3)))
        until(lambda: s.run(q.size()) == 0)
        s.run(q.close())
        peer.record("up to three", three.join())


@scenario
def queues_are_shared_by_name(peer):
    name = peer.name("q")
    q = tf.FIFOQueue(1, tf.int32, shapes=[[]], shared_name=name)
    with peer.session() as s:
        s.run(q.enqueue(5))
    with tf.Graph().as_default():
        same = tf.FIFOQueue(1, tf.int32, shapes=[[]], shared_name=name)
        others = [
            lambda: tf.FIFOQueue(5, tf.int32, shapes=[[]], shared_name=name),
            lambda: tf.FIFOQueue(1, tf.float32, shapes=[[]], shared_name=name),
            lambda: tf.FIFOQueue(1, tf.int32, shapes=[[2]], shared_name=name),
            lambda: tf.FIFOQueue(1, tf.int32, shared_name=name),
            lambda: tf.FIFOQueue(1, [tf.int32, tf.int32], shapes=[[], []], shared_name=name),
            lambda: tf.PaddingFIFOQueue(1, tf.int32, shapes=[[]], shared_name=name),
            lambda: tf.RandomShuffleQueue(1, 0, tf.int32, shapes=[[]], shared_name=name),
            lambda: tf.PriorityQueue(1, tf.int32, shapes=[[]], shared_name=name),
        ]
        sizes = [other().size() for other in others]
        with peer.session() as s:
            for i, size in enumerate(sizes):
                peer.record(f"other {i}", lambda: s.run(size))
            peer.record("same", s.run(same.dequeue()))
    name = peer.name("r")
    first = tf.RandomShuffleQueue(5, 2, tf.int32, shapes=[[]], seed=3, shared_name=name)
    others = [
        tf.RandomShuffleQueue(5, 1, tf.int32, shapes=[[]], seed=3, shared_name=name),
        tf.RandomShuffleQueue(5, 2, tf.int32, shapes=[[]], seed=4, shared_name=name),
        tf.RandomShuffleQueue(6, 2, tf.int32, shapes=[[]], seed=3, shared_name=name),
        tf.FIFOQueue(5, tf.int32, shapes=[[]], shared_name=name),
    ]
    with peer.session() as s:
        peer.record("size", s.run(first.size()))
        for i, other in enumerate(others):
            peer.record(f"other shuffle {i}", lambda: s.run(other.size()))
    name = peer.name("p")
    first = tf.PaddingFIFOQueue(5, tf.int32, shapes=[[None]], shared_name=name)
    other = tf.PaddingFIFOQueue(5, tf.int32, shapes=[[2]], shared_name=name)
    with peer.session() as s:
        peer.record("size", s.run(first.size()))
        peer.record("other padding", lambda: s.run(other.size()))


@scenario
def queues_with_invalid_attributes_are_refused(peer):
    raw = tf.raw_ops
    makers = [
        lambda: raw.FIFOQueueV2(component_types=[tf.int32, tf.int32], shapes=[[]], shared_name=peer.name("q")),
        lambda: raw.RandomShuffleQueueV2(component_types=[tf.int32], min_after_dequeue=-1, shared_name=peer.name("q")),
        lambda: raw.RandomShuffleQueueV2(component_types=[tf.int32], capacity=2, min_after_dequeue=3, shared_name=peer.name("q")),
        lambda: raw.PaddingFIFOQueueV2(component_types=[tf.int32], shapes=[None], shared_name=peer.name("q")),
        lambda: raw.PaddingFIFOQueueV2(component_types=[tf.int32], shapes=[], shared_name=peer.name("q")),
        lambda: raw.FIFOQueueV2(component_types=[tf.int32], shapes=[[None]], shared_name=peer.name("q")),
        lambda: raw.FIFOQueueV2(component_types=[tf.int32], container="_x", shared_name=peer.name("q")),
        lambda: raw.FIFOQueueV2(component_types=[tf.int32], shared_name="_" + peer.name("q")),
    ]
    for i, make in enumerate(makers):
        with tf.Graph().as_default():
            size = raw.QueueSizeV2(handle=make())
            with peer.session() as s:
                peer.record(f"maker {i}", lambda: s.run(size))


@scenario
def queues_by_reference(peer):
    raw = tf.raw_ops
    makers = [
        lambda name: raw.FIFOQueue(component_types=[tf.int64, tf.int32], shapes=[[], []], capacity=3, shared_name=name),
        lambda name: raw.RandomShuffleQueue(component_types=[tf.int64, tf.int32], shapes=[[], []], capacity=30, seed=3, seed2=4, shared_name=name),
        lambda name: raw.PaddingFIFOQueue(component_types=[tf.int64, tf.int32], shapes=[[], []], capacity=30, shared_name=name),
        lambda name: raw.PriorityQueue(component_types=[tf.int32], shapes=[[]], capacity=30, shared_name=name),
    ]
    for make in makers:
        with tf.Graph().as_default():
            handle = make(peer.name("q"))
            types = [tf.int64, tf.int32]
            ten = tf.constant([3, 1, 2], tf.int64)
            many = raw.QueueEnqueueMany(handle=handle, components=[ten, [1, 2, 3]])
            enqueue = raw.QueueEnqueue(handle=handle, components=[tf.constant(7, tf.int64), 4])
            dequeue = raw.QueueDequeue(handle=handle, component_types=types)
            two = raw.QueueDequeueMany(handle=handle, n=2, component_types=types)
            up_to = raw.QueueDequeueUpTo(handle=handle, n=5, component_types=types)
            size = raw.QueueSize(handle=handle)
            closed = raw.QueueIsClosed(handle=handle)
            close = raw.QueueClose(handle=handle, cancel_pending_enqueues=False)
            with peer.session() as s:
                s.run(many)
                peer.record("size", s.run(size))
                peer.record("one", s.run(dequeue))
                s.run(enqueue)
                peer.record("two", s.run(two))
                s.run(close)
                peer.record("closed", s.run(closed))
                # Not for the priority queue, which loses elements here in TensorFlow.
                peer.record("up to", s.run(dequeue if make is makers[-1] else up_to)[0].ravel())
                peer.record("empty", lambda: s.run(dequeue))
                shape = s.run(handle).shape
                peer.record("handle", list(shape))


@scenario
def cancelled_dequeue_takes_no_element(peer):
    q = tf.FIFOQueue(5, tf.int32, shapes=[[]], shared_name=peer.name("q"))
    options = tf.RunOptions(timeout_in_ms=300)
    with peer.session() as s, peer.session(1) as other:
        peer.record("timeout", lambda: type_of(lambda: s.run(q.dequeue(), options=options)))
        s.run(q.enqueue(1))
        peer.record("size", s.run(q.size()))
        peer.record("one", s.run(q.dequeue()))


@scenario
def closing_the_session_cancels_pending_dequeues(peer):
    q = tf.FIFOQueue(1, tf.int32, shapes=[[]], shared_name=peer.name("q"))
    begun = tf.FIFOQueue(1, tf.bool, shapes=[[]], shared_name=peer.name("begun"))
    with tf.control_dependencies([begun.enqueue(True)]):
        dequeue = q.dequeue()
    s = tf.Session(peer.target)
    peer.record("size", s.run(q.size()))
    waits = peer.background(lambda: s.run(dequeue))
    # Waits until the step runs: a step that was not sent yet would fail in the client, with another message.
    until(lambda: s.run(begun.size()) == 1)
    s.close()
    peer.record("waits", waits.join())


@scenario
def a_queue_of_another_task(peer):
    with tf.device("/job:ps/task:0"):
        q = tf.FIFOQueue(-1, [tf.int32], shapes=[[]], shared_name=peer.name("q"))
    with peer.session(0) as a, peer.session(1) as b:
        waits = peer.background(lambda: b.run(q.dequeue()))
        a.run(q.enqueue(42))
        peer.record("got", waits.join())
        peer.record("size", b.run(q.size()))


@scenario
def the_dummy_queue(peer):
    q = tf.FIFOQueue(2, [tf.int32], shapes=[[]], shared_name=peer.name("q"))
    fake = tf.raw_ops.FakeQueue(resource=q.queue_ref)
    with peer.session() as s:
        s.run(q.enqueue(3))
        peer.record("size", s.run(tf.raw_ops.QueueSize(handle=fake)))
        peer.record("one", s.run(tf.raw_ops.QueueDequeue(handle=fake, component_types=[tf.int32])))


@scenario
def elements_of_every_kind(peer):
    for dtype in ("half", "bfloat16", "float64", "int8", "int16", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"):
        with tf.Graph().as_default():
            dtype = tf.as_dtype(dtype)
            q = tf.FIFOQueue(5, dtype, shapes=[[2]], shared_name=peer.name("q"))
            x = tf.placeholder(dtype, [None, 2])
            with peer.session() as s:
                s.run(q.enqueue_many(x), {x: [[1, 0], [0, 1]]})
                peer.record(dtype.name, [v.tolist() for v in s.run([q.dequeue_many(2)])])


@scenario
def an_input_pipeline(peer):
    files = tf.train.string_input_producer([f"f{i}" for i in range(6)], num_epochs=2, shuffle=False)
    name = files.dequeue()
    names, numbers = tf.train.batch([name, tf.size(name)], batch_size=4, num_threads=1)
    with peer.session() as s:
        s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(s, coordinator)
        for _ in range(3):
            peer.record("batch", s.run([names, numbers]))
        peer.record("end", lambda: type_of(lambda: s.run(names)))
        coordinator.request_stop()
        coordinator.join(threads)


@scenario
def shuffled_batches(peer):
    number = tf.train.range_input_producer(16, num_epochs=1, seed=5).dequeue()
    batch = tf.train.shuffle_batch([number], batch_size=4, capacity=20, min_after_dequeue=4, seed=3)
    seen = []
    with peer.session() as s:
        s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(s, coordinator)
        try:
            while not coordinator.should_stop():
                seen += s.run(batch).tolist()
        except tf.errors.OutOfRangeError:
            coordinator.request_stop()
        coordinator.join(threads)
    peer.record("all", sorted(seen))
