"""Input pipelines of tf.data in TensorFlow-1 style. The elements of each pipeline of `pipelines` are compared between our
server (`--target`) and TensorFlow's; checks cover sharing between sessions, waiting, cancellation and errors."""
import argparse
import os
import sys
import tempfile
import threading

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.data.ops.dataset_ops import _VariantDataset
from tensorflow.python.data.ops.multi_device_iterator_ops import MultiDeviceIterator
from tensorflow.python.framework import function
from tensorflow.python.ops import gen_dataset_ops as dataset_ops
from tensorflow.python.ops import gen_experimental_dataset_ops as experimental

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from pipelines import PIPELINES, Dataset, databases, elements, same  # noqa: E402

CHECKS = []


def check(f):
    """Registers a check, which is a function of both targets."""
    CHECKS.append(f)
    return f


def fails(error, *parts):
    """A context manager that expects `error` with all of `parts` in its message."""

    class Expected:
        def __enter__(self):
            return self

        def __exit__(self, kind, value, _):
            assert kind is not None, f"{error} was expected, nothing failed"
            assert issubclass(kind, error), f"{error} was expected, got {kind.__name__}: {value}"
            for part in parts:
                assert part in str(value), f"'{part}' is not in: {value}"
            return True

    return Expected()


@check
def uninitialised_iterator_is_an_error(ours, theirs):
    for target in (ours, theirs):
        with tf.Graph().as_default(), tf.Session(target) as session:
            iterator = tf.data.make_initializable_iterator(Dataset.range(3))
            following = iterator.get_next()
            with fails(tf.errors.FailedPreconditionError, "GetNext() failed because the iterator has not been initialized. Ensure that"):
                session.run(following)


@check
def databases_of_other_kinds_are_refused(ours, theirs):
    given = dict(driver_name="sqlite", data_source_name=databases.database(), query="select i from t", output_types=[tf.int64], output_shapes=[[]])
    wrong = dict(driver_name="mysql"), dict(output_types=[tf.float32]), dict(output_shapes=[[1]]), dict(query=["a", "b"])
    for target in (theirs, ours):
        for op in (experimental.experimental_sql_dataset, tf.raw_ops.SqlDataset):
            for other in wrong:
                with tf.Graph().as_default(), tf.Session(target) as session:
                    arguments = {**given, **other}
                    arguments["query"] = tf.placeholder_with_default(arguments["query"], None)
                    with fails(tf.errors.InvalidArgumentError):
                        session.run(op(**arguments))


@check
def elements_are_read_by_their_index(ours, theirs):
    results = []
    for target in (theirs, ours):
        found = []
        with tf.Graph().as_default(), tf.Session(target) as session:
            datasets = (Dataset.range(5), Dataset.range(9).skip(2).take(4))
            for dataset in datasets:
                for index in (0, 2, 7, -1):
                    read = tf.raw_ops.GetElementAtIndex(dataset=dataset._variant_tensor, index=index, output_types=[tf.int64], output_shapes=[[]])
                    try:
                        found.append(session.run(read))
                    except tf.errors.OutOfRangeError:
                        found.append("out of range")
        results.append(found)
    assert results[0] == results[1], results


@check
def tables_are_initialized_from_datasets(ours, theirs):
    for target in (theirs, ours):
        with tf.Graph().as_default(), tf.Session(target) as session:
            dataset = Dataset.zip((Dataset.from_tensor_slices([b"a", b"b", b"c"]), Dataset.range(3)))
            table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name="of_dataset")
            session.run(tf.raw_ops.InitializeTableFromDataset(table_handle=table, dataset=dataset._variant_tensor))
            found = tf.raw_ops.LookupTableFindV2(table_handle=table, keys=tf.constant([b"b", b"x", b"c"]), default_value=np.int64(-1))
            assert session.run(found).tolist() == [1, -1, 2]


SAVED = {
    "shuffle": lambda: Dataset.range(12).shuffle(5, seed=1).repeat(2),
    "parallel map": lambda: Dataset.range(12).map(lambda x: x * 2, num_parallel_calls=3).batch(2),
    "prefetch": lambda: Dataset.range(12).shuffle(5, seed=2).prefetch(4),
    "interleave": lambda: Dataset.range(5).interleave(lambda x: Dataset.range(x, x + 3), cycle_length=3),
    "zip": lambda: Dataset.zip((Dataset.range(9), Dataset.from_tensor_slices(tf.range(8.0)).skip(1).take(5))),
    "concatenate": lambda: Dataset.range(3).concatenate(Dataset.range(5).filter(lambda x: tf.equal(x % 2, 1))),
    "query": lambda: databases.rows("select i from many limit 12", (tf.int32,)),
    "cache": lambda: Dataset.range(5).shuffle(5, seed=3).cache().repeat(3),
    "global shuffle": lambda: globally_shuffled(ten_times_each(Dataset.range(9))).repeat(2),
}


def saved_and_restored(target, make, count, path, policy=None):
    """The elements after the first `count`, from an iterator of another session that is restored."""

    def iterator_and_saver():
        iterator = tf.data.make_initializable_iterator(make())
        saveable = tf.data.experimental.make_saveable_from_iterator(iterator, external_state_policy=policy)
        return iterator, iterator.get_next(), tf.train.Saver([saveable])

    def rest(session, following):
        try:
            while True:
                got.append(session.run(following))
        except tf.errors.OutOfRangeError:
            pass

    with tf.Graph().as_default(), tf.Session(target) as session:
        iterator, following, saver = iterator_and_saver()
        session.run(iterator.initializer)
        for _ in range(count):
            session.run(following)
        path = saver.save(session, path)
    got = []
    with tf.Graph().as_default(), tf.Session(target) as session:
        iterator, following, saver = iterator_and_saver()
        session.run(iterator.initializer)
        saver.restore(session, path)
        rest(session, following)
    return got


@check
def restored_iterators_continue(ours, theirs):
    with tempfile.TemporaryDirectory() as folder:
        for name, make in SAVED.items():
            for count in (0, 1, 4):
                of = [saved_and_restored(t, make, count, os.path.join(folder, "state")) for t in (ours, theirs)]
                assert of[0], f"{name} has no elements after {count}"
                assert str(of[0]) == str(of[1]), (name, count, *of)


@check
def iterators_with_external_state_are_not_saved(ours, theirs):
    noise = lambda: Dataset.range(3).map(lambda x: tf.random_uniform([]))  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state")
        for target in (ours, theirs):
            with fails(tf.errors.FailedPreconditionError, "RandomUniform is stateful"):
                saved_and_restored(target, noise, 1, path)
            assert len(saved_and_restored(target, noise, 1, path, "ignore")) == 2


@check
def uninitialised_iterators_are_not_saved_nor_restored(ours, theirs):
    for target in (ours, theirs):
        with tf.Graph().as_default(), tf.Session(target) as session:
            first, second = (tf.data.make_initializable_iterator(Dataset.range(3)) for _ in range(2))
            state = dataset_ops.serialize_iterator(first._iterator_resource)
            restore = dataset_ops.deserialize_iterator(second._iterator_resource, state)
            with fails(tf.errors.FailedPreconditionError, "Save() failed because the iterator has not been initialized."):
                session.run(restore)
            session.run(first.initializer)
            with fails(tf.errors.FailedPreconditionError, "Restore() failed because the iterator has not been initialized."):
                session.run(restore)


@check
def elements_are_prefetched_to_a_device(ours, theirs):
    def run(target):
        with tf.Graph().as_default(), tf.Session(target) as session:
            pairs = Dataset.from_tensor_slices((tf.range(10.0), tf.range(10))).batch(4)
            copied = pairs.apply(tf.data.experimental.prefetch_to_device("/cpu:0"))
            iterator = tf.data.make_initializable_iterator(copied)
            following = iterator.get_next()
            got = []
            for _ in range(2):
                session.run(iterator.initializer)
                got += [session.run(following) for _ in range(3)]
                with fails(tf.errors.OutOfRangeError, "End of sequence"):
                    session.run(following)
            return got

    same(run(ours), run(theirs))


@check
def elements_are_distributed_to_devices(ours, theirs):
    def run(target):
        with tf.Graph().as_default(), tf.Session(target) as session:
            iterator = MultiDeviceIterator(Dataset.range(7), ["/cpu:0", "/cpu:0"], max_buffer_size=2)
            following = iterator.get_next()
            got = []
            for _ in range(2):
                session.run(iterator.initializer)
                got += [session.run(following) for _ in range(3)]
                assert session.run(following[0]) == 6
                with fails(tf.errors.OutOfRangeError, "End of sequence"):
                    session.run(following[1])
            return got

    same(run(ours), run(theirs))


@check
def batches_are_rebatched_and_sharded(ours, theirs):
    of = {"output_types": [tf.int64], "output_shapes": [[None]]}

    def batches(count):
        return Dataset.range(count).batch(4)._variant_tensor

    def sizes(count, batch_sizes, drop):
        return lambda: experimental.rebatch_dataset_v2(batches(count), tf.constant(batch_sizes, tf.int64), tf.constant(drop), **of)

    def replicas(count, number):
        return lambda: experimental.rebatch_dataset(batches(count), tf.constant(number, tf.int64), **of)

    def workers(number, index, policy):
        return lambda: experimental.auto_shard_dataset(batches(16), tf.constant(number, tf.int64), tf.constant(index, tf.int64), auto_shard_policy=policy, **of)

    made = [sizes(8, [2, 1, 1], False), sizes(6, [2, 1, 1], False), sizes(16, 6, False), sizes(16, 6, True), sizes(9, [2, 0, 2], False), sizes(0, [2], False)]
    made += [sizes(8, [[1]], False), replicas(9, 2), replicas(8, 3), replicas(7, 3), replicas(8, 5), replicas(8, 0)]
    made += [workers(1, 0, 0), workers(2, 1, 0), workers(2, 0, 2), workers(2, 1, -1), workers(2, 2, 0), workers(0, 0, 0)]
    made.append(lambda: experimental.dataset_from_graph(dataset_ops.dataset_to_graph_v2(batches(6))))

    def run(target, make):
        with tf.Graph().as_default(), tf.Session(target) as session:
            iterator = tf.data.make_initializable_iterator(_VariantDataset(make(), tf.TensorSpec([None], tf.int64)))
            following, got = iterator.get_next(), []
            try:
                session.run(iterator.initializer)
                while True:
                    got.append((session.run(following),))
            except tf.errors.OpError as error:
                return got, type(error).__name__, error.message.split("\n\t")[0].split("\n")[-1]

    for i, make in enumerate(made):
        (a, *end), (b, *their_end) = run(ours, make), run(theirs, make)
        assert end == their_end, (i, end, their_end)
        same(a, b)


@check
def iterator_is_initialised_again_with_other_feeds(ours, theirs):
    def run(target):
        with tf.Graph().as_default(), tf.Session(target) as session:
            values = tf.placeholder(tf.float32, [None])
            size = tf.placeholder(tf.int64, [])
            iterator = tf.data.make_initializable_iterator(Dataset.from_tensor_slices(values).shuffle(4, seed=1).batch(size))
            following = iterator.get_next()
            got = []
            for feeds in ({values: [1, 2, 3, 4, 5], size: 2}, {values: [7, 8, 9], size: 5}, {values: [1, 2, 3, 4, 5], size: 2}):
                session.run(iterator.initializer, feeds)
                got.append([session.run(following) for _ in range(1)])
            with fails(tf.errors.InvalidArgumentError, "Batch size must be greater than zero."):
                session.run(iterator.initializer, {values: [1.0], size: 0})
            return got

    for a, b in zip(run(ours), run(theirs)):
        same(a, b)


@check
def iterator_is_initialised_with_several_datasets(ours, theirs):
    for target in (ours, theirs):
        with tf.Graph().as_default(), tf.Session(target) as session:
            training, validation = Dataset.range(100, 103), Dataset.range(2)
            iterator = tf.data.Iterator.from_structure(tf.int64, [])
            following = iterator.get_next()
            first, second = iterator.make_initializer(training), iterator.make_initializer(validation)
            for initializer, values in ((first, [100, 101, 102]), (second, [0, 1]), (first, [100, 101, 102])):
                session.run(initializer)
                assert [session.run(following) for _ in values] == values
                with fails(tf.errors.OutOfRangeError, "End of sequence"):
                    session.run(following)
            wrong = tf.raw_ops.MakeIterator(dataset=Dataset.from_tensors(1.5)._variant_tensor, iterator=iterator._iterator_resource)
            with fails(tf.errors.InvalidArgumentError, "Data type mismatch at component 0: expected int64 but got float."):
                session.run(wrong)


@check
def fed_handle_chooses_the_iterator(ours, theirs):
    for target in (ours, theirs):
        with tf.Graph().as_default(), tf.Session(target) as session:
            a = tf.data.make_initializable_iterator(Dataset.range(5))
            b = tf.data.make_initializable_iterator(Dataset.range(50, 55).repeat())
            handle = tf.placeholder(tf.string, [])
            following = tf.data.Iterator.from_string_handle(handle, tf.int64, []).get_next()
            a_handle, b_handle = session.run([a.string_handle(), b.string_handle()])
            session.run([a.initializer, b.initializer])
            got = [session.run(following, {handle: h}) for h in (a_handle, b_handle, b_handle, a_handle)]
            assert got == [0, 50, 51, 1], got
            with fails(tf.errors.InvalidArgumentError, "Could not parse string_handle as a valid ResourceHandle"):
                session.run(following, {handle: b"rubbish"})
            floats = tf.data.Iterator.from_string_handle(handle, tf.float32, []).get_next()
            with fails(tf.errors.InvalidArgumentError, "Data type mismatch at component 0: expected float but got int64."):
                session.run(floats, {handle: a_handle})


@check
def sessions_share_an_iterator_by_its_name(ours, theirs):
    name = f"shared{os.getpid()}"

    def build():
        iterator = tf.data.make_initializable_iterator(Dataset.range(10), shared_name=name)
        return iterator.initializer, iterator.get_next()

    with tf.Graph().as_default(), tf.Session(ours) as first:
        initializer, one = build()
        first.run(initializer)
        with tf.Graph().as_default(), tf.Session(ours) as second:
            _, other = build()
            assert [first.run(one), second.run(other), first.run(one), second.run(other)] == [0, 1, 2, 3]


@check
def elements_are_sent_to_another_task(ours, theirs):
    if not OTHER:
        return
    with tf.Graph().as_default(), tf.Session(ours) as session:
        with tf.device(OTHER[1]):
            iterator = tf.data.make_initializable_iterator(Dataset.from_tensor_slices(np.arange(6.0).reshape(3, 2)))
            following = iterator.get_next()
        with tf.device(OTHER[0]):
            doubled = following * 2.0
        session.run(iterator.initializer)
        assert session.run(doubled).tolist() == [0.0, 2.0]
        name = f"between{os.getpid()}"
        with tf.device(OTHER[1]):
            far = tf.data.make_initializable_iterator(Dataset.range(8), shared_name=name)
            session.run(far.initializer)
            mine = far.get_next()
        assert session.run(mine) == 0
        with tf.Session(OTHER[2]) as second:
            assert second.run(mine) == 1
            assert session.run(mine) == 2


def drained(session, following):
    """Returns the remaining elements."""
    left = []
    try:
        while True:
            left.append(session.run(following))
    except tf.errors.OutOfRangeError:
        return left


def without_end(made):
    """A dataset that searches for ever for an element; the variable `made` counts the elements of the search."""

    def never(i):
        with tf.control_dependencies([made.assign_add(1)]):
            return tf.less(i, 0)

    return Dataset.range(9).repeat().filter(never)


@check
def waiting_step_ends_when_cancelled(ours, theirs):
    for ahead in (False, True):
        with tf.Graph().as_default(), tf.Session(ours) as session:
            made = tf.get_variable("made", [], tf.int64, tf.zeros_initializer(), use_resource=True)
            endless = without_end(made)
            iterator = tf.data.Iterator.from_structure(tf.int64, [])
            following = iterator.get_next()
            session.run(made.initializer)
            session.run(iterator.make_initializer(endless.prefetch(1) if ahead else endless))
            with fails(tf.errors.DeadlineExceededError):
                session.run(following, options=tf.RunOptions(timeout_in_ms=300))
            # Initialising the iterator with another dataset ends the search.
            session.run(iterator.make_initializer(Dataset.range(5, 7)))
            assert [session.run(following), session.run(following)] == [5, 6]


@check
def closing_a_session_ends_waiting_steps(ours, theirs):
    with tf.Graph().as_default():
        made = tf.get_variable("made", [], tf.int64, tf.zeros_initializer(), use_resource=True)
        iterator = tf.data.make_initializable_iterator(without_end(made))
        following, seen = iterator.get_next(), made.read_value()
        session = tf.Session(ours)
        session.run(made.initializer)
        session.run(iterator.initializer)
        ended = []

        def wait():
            try:
                session.run(following)
            except tf.errors.OpError as error:
                ended.append(type(error))

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: session.run(seen) > 0)
        session.close()
        thread.join(30)
        assert ended == [tf.errors.CancelledError], ended


@check
def elements_are_prefetched_between_steps(ours, theirs):
    with tf.Graph().as_default(), tf.Session(ours) as session:
        made = tf.get_variable("made", [], tf.int64, tf.zeros_initializer(), use_resource=True)

        def count(i):
            with tf.control_dependencies([made.assign_add(1)]):
                return tf.identity(i)

        iterator = tf.data.make_initializable_iterator(Dataset.range(100).map(count).prefetch(5))
        following, seen = iterator.get_next(), made.read_value()
        session.run(made.initializer)
        session.run(iterator.initializer)
        assert session.run(seen) == 0
        assert session.run(following) == 0
        # One element is taken and five are prefetched. At most one more is in progress.
        until(lambda: session.run(seen) >= 6)
        assert session.run(seen) <= 7


@check
def function_reads_captured_tensors(ours, theirs):
    with tf.Graph().as_default(), tf.Session(ours) as session:
        v = tf.get_variable("v", initializer=3.0, use_resource=True)
        factor = tf.placeholder(tf.float32, [])
        dataset = Dataset.from_tensor_slices([1.0, 2.0, 3.0]).map(lambda x: x * v * factor)
        iterator = tf.data.make_initializable_iterator(dataset)
        following = iterator.get_next()
        session.run(v.initializer)
        session.run(iterator.initializer, {factor: 10.0})
        assert session.run(following) == 30.0
        session.run(v.assign(5.0))
        assert session.run(following) == 100.0


@check
def iterators_over_one_dataset_shuffle_with_one_generator(ours, theirs):
    shuffled = [
        lambda d: d.shuffle(6, seed=3),
        lambda d: d.shuffle(6, seed=3).repeat(2),
        lambda d: d.shuffle(6, seed=3, reshuffle_each_iteration=False),
        lambda d: d.apply(tf.data.experimental.shuffle_and_repeat(6, count=2, seed=3)),
        lambda d: (lambda once: once.concatenate(once))(d.shuffle(6, seed=3)),
    ]
    for make in shuffled:
        seen = []
        for target in (ours, theirs):
            with tf.Graph().as_default(), tf.Session(target) as session:
                dataset = make(Dataset.range(6))
                first = tf.data.make_initializable_iterator(dataset)
                with tf.control_dependencies([first.initializer]):
                    second = tf.data.make_initializable_iterator(dataset)
                followings = [first.get_next(), second.get_next()]
                # Each step that creates the dataset creates another one.
                for _ in range(2):
                    session.run(second.initializer)
                    seen.append([drained(session, following) for following in followings])
        assert seen[:2] == seen[2:], seen


@check
def error_of_a_function_names_its_node(ours, theirs):
    for target in (ours, theirs):
        with tf.Graph().as_default(), tf.Session(target) as session:
            dataset = Dataset.from_tensor_slices([1, 7, 2]).map(lambda i: tf.gather([10, 20, 30], i, name="pick"))
            iterator = tf.data.make_initializable_iterator(dataset)
            following = iterator.get_next()
            session.run(iterator.initializer)
            assert session.run(following) == 20
            with fails(tf.errors.InvalidArgumentError, "Error in user-defined function passed to", "= 7 is not in [0, 3)\n\t [[{{node pick}}]]\n\t [[IteratorGetNext]]"):
                session.run(following)
            assert session.run(following) == 30


@check
def properties_of_datasets(ours, theirs):
    for target in (ours, theirs):
        with tf.Graph().as_default(), tf.Session(target) as session:
            cardinality = tf.data.experimental.cardinality
            some = Dataset.range(10)
            asked = [cardinality(d) for d in (some.batch(3).repeat(2).skip(1), some.repeat(), some.filter(lambda i: i > 2), some.window(4, 3, 2))]
            assert session.run(asked) == [7, -1, -2, 4], session.run(asked)
            assert session.run(tf.data.experimental.get_single_element(some.batch(10))).tolist() == list(range(10))
            with fails(tf.errors.InvalidArgumentError, "Dataset had more than one element."):
                session.run(tf.data.experimental.get_single_element(some))
            with fails(tf.errors.InvalidArgumentError, "Dataset was empty."):
                session.run(tf.data.experimental.get_single_element(some.take(0)))
            assert session.run(some.reduce(np.int64(0), lambda s, x: s + x)) == 45


@check
def caches_in_files_are_exchanged(ours, theirs):
    def all_of(target, dataset):
        with tf.Graph().as_default(), tf.Session(target) as session:
            following = tf.nest.flatten(tf.data.make_one_shot_iterator(dataset()).get_next())
            return drained(session, following)

    def cached(count, path, width):
        return lambda: Dataset.range(count).map(lambda i: tuple([i * k for k in range(width)] + [tf.as_string(i)])).cache(path)

    for width in (1, 10):
        for writer, reader in ((ours, theirs), (theirs, ours)):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "cache")
                written = all_of(writer, cached(25, path, width))
                assert sorted(os.listdir(folder)) == ["cache.data-00000-of-00001", "cache.index"], os.listdir(folder)
                # The reader has another input, which it does not read.
                assert str(all_of(reader, cached(3, path, width))) == str(written) and len(written) == 25


@check
def one_iterator_writes_a_cache(ours, theirs):
    for target in (ours, theirs):
        with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default(), tf.Session(target) as session:
            path = os.path.join(folder, "cache")
            first, second = (tf.data.make_initializable_iterator(Dataset.range(5).cache(path)) for _ in range(2))
            of_first, of_second = first.get_next(), second.get_next()
            session.run([first.initializer, second.initializer])
            assert session.run(of_first) == 0
            with fails(tf.errors.AlreadyExistsError, "There appears to be a concurrent caching iterator running - cache lockfile already exists ('" + path + "_0.lockfile').", "Lockfile contents: Created at: "):
                session.run(of_second)
            assert drained(session, of_first) == [1, 2, 3, 4]
            session.run(second.initializer)
            assert drained(session, of_second) == [0, 1, 2, 3, 4]
        with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default(), tf.Session(target) as session:
            dataset = Dataset.range(5).cache(os.path.join(folder, "cache"))
            iterator = tf.data.make_initializable_iterator(dataset)
            following = iterator.get_next()
            for _ in range(2):
                session.run(iterator.initializer)
                assert session.run(following) == 0
            session.run(tf.data.Iterator.from_structure(tf.int64, []).make_initializer(Dataset.range(1)))
            assert "cache.index" not in os.listdir(folder)


@check
def saved_iterators_continue_their_cache(ours, theirs):
    for target in (ours,):
        with tempfile.TemporaryDirectory() as folder:
            make = lambda: Dataset.range(9).cache(os.path.join(folder, "cache"))  # noqa: E731
            assert saved_and_restored(target, make, 4, os.path.join(folder, "state")) == [4, 5, 6, 7, 8]
            assert {"cache.index", "cache.data-00000-of-00002"} <= set(os.listdir(folder)), os.listdir(folder)
            assert not [name for name in os.listdir(folder) if name.startswith("cache_")], os.listdir(folder)
            assert saved_and_restored(target, make, 0, os.path.join(folder, "state")) == list(range(9))


@check
def elements_are_written_to_record_files(ours, theirs):
    words = lambda: Dataset.from_tensor_slices(["a", "", "ccc"])._variant_tensor  # noqa: E731
    for target in (ours, theirs):
        with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default(), tf.Session(target) as session:
            for op in (tf.raw_ops.DatasetToTFRecord, tf.raw_ops.ExperimentalDatasetToTFRecord):
                for compression in ("", "GZIP", "ZLIB"):
                    path = os.path.join(folder, "records" + compression)
                    session.run(op(input_dataset=words(), filename=path, compression_type=compression))
                    assert list(tf.io.tf_record_iterator(path, compression)) == [b"a", b"", b"ccc"]
            write = lambda dataset, path: tf.raw_ops.DatasetToTFRecord(input_dataset=dataset, filename=path, compression_type="")  # noqa: E731
            with fails(tf.errors.InvalidArgumentError, "ToTFRecordOp currently only supports DT_STRING dataypes, but got int64"):
                session.run(write(Dataset.range(3)._variant_tensor, path))
            with fails(tf.errors.InvalidArgumentError, "ToTFRecordOp currently only support datasets of 1 single column, but got 2"):
                session.run(write(Dataset.from_tensor_slices((["a"], ["b"]))._variant_tensor, path))
            with fails(tf.errors.NotFoundError, "/no/such/folder"):
                session.run(write(words(), "/no/such/folder/x"))


@check
def windows_and_thread_pools_have_the_elements_of_their_inputs(ours, theirs):
    def run(target):
        with tf.Graph().as_default(), tf.Session(target) as session:
            number, text = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)
            inputs = [tf.placeholder(t, []) for t in (tf.int64, tf.string, tf.int64, tf.string, tf.int64)]
            window = tf.raw_ops.WindowOp(inputs=inputs, output_types=[tf.int64, tf.string], output_shapes=[[], []])
            pool = tf.raw_ops.ThreadPoolHandle(num_threads=2, display_name="pool")
            pooled = tf.raw_ops.ThreadPoolDataset(input_dataset=Dataset.range(4)._variant_tensor, thread_pool=pool, output_types=[tf.int64], output_shapes=[[]])
            got = []
            for dataset in (_VariantDataset(window, (number, text)), _VariantDataset(pooled, number)):
                iterator = tf.data.make_initializable_iterator(dataset)
                session.run(iterator.initializer, dict(zip(inputs, (1, "a", 2, "b", 3))))
                got.append(drained(session, iterator.get_next()))
            with fails(tf.errors.InvalidArgumentError, "`num_threads` must be >= 0"):
                session.run(tf.raw_ops.ThreadPoolHandle(num_threads=-1, display_name="pool"))
            return got

    assert run(ours) == run(theirs) == [[(1, b"a"), (2, b"b")], [0, 1, 2, 3]], (run(ours), run(theirs))


@check
def functions_are_mapped_over_rows(ours, theirs):
    @function.Defun(tf.int64, tf.float32, tf.int64)
    def body(x, y, c):
        return x * 2 + c, tf.stack([y, y])

    @function.Defun(tf.int64)
    def failing(x):
        return tf.gather([10, 20], x)

    def call(count, width=2, f=body, rows=None, shape=(2, 2)):
        if f is failing:
            return tf.raw_ops.MapDefun(arguments=[tf.range(count, dtype=tf.int64)], captured_inputs=[], output_types=[tf.int32], output_shapes=[[]], f=f)
        vectors = tf.placeholder_with_default(np.full([count if rows is None else rows, width], 0.5, np.float32), None)
        return tf.raw_ops.MapDefun(arguments=[tf.range(count, dtype=tf.int64), vectors], captured_inputs=[tf.constant(7, tf.int64)], output_types=[tf.int64, tf.float32], output_shapes=[[], shape], f=f)

    made = [lambda: call(3), lambda: call(40, shape=None), lambda: call(0), lambda: call(5, f=failing), lambda: call(2, f=failing), lambda: call(3, rows=2), lambda: call(3, shape=(3, 2))]

    def run(target, make):
        with tf.Graph().as_default(), tf.Session(target) as session:
            try:
                return [value.tolist() for value in session.run(make())]
            except tf.errors.OpError as error:
                return type(error).__name__

    for i, make in enumerate(made):
        assert run(ours, make) == run(theirs, make), (i, run(ours, make), run(theirs, make))


@check
def compressed_elements_are_uncompressed(ours, theirs):
    def run(target, dtypes):
        with tf.Graph().as_default(), tf.Session(target) as session:
            n = tf.placeholder_with_default
            parts = [n(np.arange(300).reshape(3, 100), None), n(np.array(["abc", "", "d" * 70]), None), n(2.5, None)]
            compressed = tf.raw_ops.CompressElement(components=parts)
            try:
                return [value.tolist() for value in session.run(tf.raw_ops.UncompressElement(compressed=compressed, output_types=dtypes, output_shapes=[None] * len(dtypes)))]
            except tf.errors.OpError as error:
                return type(error).__name__, error.message.split("\n\t")[0].split("\n")[-1]

    for dtypes in ([tf.int64, tf.string, tf.float32], [tf.int64, tf.string], [tf.int64, tf.string, tf.int32]):
        assert run(ours, dtypes) == run(theirs, dtypes), (dtypes, run(ours, dtypes), run(theirs, dtypes))


@check
def elements_are_found_by_their_index(ours, theirs):
    base = Dataset.range
    made = {
        "range": lambda: base(10, 20, 2), "slices": lambda: Dataset.from_tensor_slices(np.arange(5)), "map": lambda: base(5).map(abs),
        "parallel map": lambda: base(5).map(abs, num_parallel_calls=2), "take": lambda: base(9).take(5), "skip": lambda: base(8).skip(3),
        "shard": lambda: base(15).shard(3, 1), "repeat": lambda: base(3).repeat(2).take(5), "concatenate": lambda: base(3).concatenate(base(7, 9)),
        "cache": lambda: base(5).cache(), "prefetch": lambda: base(5).prefetch(1), "zip": lambda: Dataset.zip((base(7), base(5))),
        "batch": lambda: base(14).batch(3), "batches without remainder": lambda: base(15).batch(3, drop_remainder=True), "tensors": lambda: Dataset.from_tensors(np.int64(5)),
        "filter": lambda: base(5).filter(lambda x: x > 1), "endless": lambda: base(5).repeat(), "flat map": lambda: base(5).flat_map(base),
    }

    def run(target, make, index):
        with tf.Graph().as_default(), tf.Session(target) as session:
            dataset = make()
            spec = tf.nest.flatten(dataset.element_spec)
            element = tf.raw_ops.GetElementAtIndex(dataset=dataset._variant_tensor, index=tf.constant(index, tf.int64), output_types=[s.dtype for s in spec], output_shapes=[s.shape for s in spec])
            try:
                return [value.tolist() for value in session.run(element)]
            except tf.errors.OpError as error:
                return type(error).__name__

    for name, make in made.items():
        for index in (0, 3, 4, 5, -1):
            assert run(ours, make, index) == run(theirs, make, index), (name, index, run(ours, make, index), run(theirs, make, index))


@check
def tables_are_initialised_from_datasets(ours, theirs):
    def run(target, keys, values):
        with tf.Graph().as_default(), tf.Session(target) as session:
            table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name=f"filled{os.getpid()}{len(keys)}{values[-1:]}".replace("[", "").replace("]", ""))
            dataset = Dataset.from_tensor_slices((tf.constant(keys, tf.string, [len(keys)]), tf.constant(values, tf.int64, [len(keys)])))
            fill = tf.raw_ops.InitializeTableFromDataset(table_handle=table, dataset=dataset._variant_tensor)
            try:
                session.run([fill])
                session.run([fill])
                found = tf.raw_ops.LookupTableFindV2(table_handle=table, keys=tf.constant(["a", "b", "c"]), default_value=tf.constant(-1, tf.int64))
                return session.run([found, tf.raw_ops.LookupTableSizeV2(table_handle=table)])[0].tolist()
            except tf.errors.OpError as error:
                return type(error).__name__, error.message.split("\n\t")[0].split("\n")[-1]

    for keys, values in ((["a", "b"], [1, 2]), (["a", "a"], [4, 4]), (["a", "a", "c"], [1, 2, 3])):
        assert run(ours, keys, values) == run(theirs, keys, values), (keys, run(ours, keys, values), run(theirs, keys, values))


STORED = {"output_types": [tf.int64, tf.string, tf.float32], "output_shapes": [[], [], [2]]}


@function.Defun(tf.int64, tf.string, tf.float32, tf.int64)
def shard_of(number, text, row, shards):
    return number % shards


@function.Defun(tf.variant)
def one_shard_after_the_other(shards):
    @function.Defun(tf.variant)
    def same_dataset(shard):
        return shard

    return dataset_ops.flat_map_dataset(shards, [], f=same_dataset, **STORED)


def stored_elements(count):
    return Dataset.range(count).map(lambda i: (i, tf.as_string(i) + "x" * 100, tf.fill([2], tf.cast(i, tf.float32))))


def loaded(path, compression):
    variant = experimental.load_dataset(path, [], compression=compression, reader_func=one_shard_after_the_other, **STORED)
    return _VariantDataset(variant, tuple(tf.TensorSpec(s, t) for t, s in zip(STORED["output_types"], STORED["output_shapes"])))


@check
def stored_datasets_are_exchanged(ours, theirs):
    def all_of(session, dataset):
        iterator = tf.data.make_initializable_iterator(dataset)
        session.run(iterator.initializer)
        return str(drained(session, iterator.get_next()))

    for compression in ("", "GZIP", "SNAPPY"):
        for shards in (0, 3):
            for writer, reader in ((ours, theirs), (theirs, ours)):
                with tempfile.TemporaryDirectory() as folder:
                    with tf.Graph().as_default(), tf.Session(writer) as session:
                        arguments = {"shard_func_other_args": [tf.constant(max(shards, 1), tf.int64)], "compression": compression, "shard_func": shard_of, "use_shard_func": shards > 0}
                        for name in ("once", "again"):
                            session.run(experimental.save_dataset(stored_elements(40)._variant_tensor, folder + "/once", **arguments))
                        passing = experimental.save_dataset_v2(stored_elements(40)._variant_tensor, folder + "/passed", **arguments, **STORED)
                        spec = tuple(tf.TensorSpec(s, t) for t, s in zip(STORED["output_types"], STORED["output_shapes"]))
                        whole = all_of(session, stored_elements(40))
                        assert all_of(session, _VariantDataset(passing, spec)) == whole
                    for name in ("once", "passed"):
                        runs = [name for name in os.listdir(folder + "/" + name) if name.isdigit()]
                        assert len(runs) == (2 if name == "once" else 1), runs
                        run = os.path.join(folder, name, runs[0])
                        # TensorFlow counts the iterators that save a dataset without shards.
                        shard = os.path.join(run, sorted(os.listdir(run))[0])
                        assert os.listdir(shard) == ["00000000.snapshot"]
                        for target in (reader, writer):
                            with tf.Graph().as_default(), tf.Session(target) as session:
                                dataset = loaded(folder + "/" + name, compression)
                                got = all_of(session, dataset)
                                in_order = [i for shard in range(max(shards, 1)) for i in range(40) if i % max(shards, 1) == shard]
                                assert got == str([e for i in in_order for e in eval_elements(whole)[i : i + 1]]), (name, compression, shards)
                                # TensorFlow does not count the elements that it saves while they are read.
                                count = -2 if name == "passed" and writer == theirs else 40
                                assert session.run(tf.data.experimental.cardinality(dataset)) == count
                    with tf.Graph().as_default(), tf.Session(ours) as session:
                        spec = tuple(tf.TensorSpec(s, t) for t, s in zip(STORED["output_types"], STORED["output_shapes"]))
                        read = experimental.snapshot_dataset_reader(shard, tf.constant(5, tf.int64), compression=compression, version=2, **STORED)
                        chunk = experimental.snapshot_chunk_dataset(shard + "/00000000.snapshot", compression=compression, **STORED)
                        assert all_of(session, _VariantDataset(chunk, spec).skip(5)) == all_of(session, _VariantDataset(read, spec)) != "[]"


def eval_elements(text):
    """Returns the elements in their printed form."""
    return eval(text, {"array": np.array, "float32": np.float32, "np": np})


@check
def errors_of_stored_datasets_are_those_of_tensorflow(ours, theirs):
    @function.Defun(tf.int64)
    def floats(i):
        return tf.cast(i, tf.float32)

    for target in (ours, theirs):
        with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default(), tf.Session(target) as session:
            with fails(tf.errors.NotFoundError, f"Could not find metadata file [{folder}/none]"):
                session.run(loaded(folder + "/none", "")._variant_tensor.op)
            with fails(tf.errors.InvalidArgumentError, "`shard_func` must return a scalar int64."):
                session.run(experimental.save_dataset(Dataset.range(3)._variant_tensor, folder + "/floats", [], shard_func=floats))
            session.run(experimental.save_dataset(Dataset.range(0)._variant_tensor, folder + "/empty", [], shard_func=floats))
            assert session.run(tf.data.experimental.cardinality(loaded(folder + "/empty", ""))) == 0


@check
def files_of_a_snapshot_are_listed_until_it_is_done(ours, theirs):
    with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default(), tf.Session(ours) as session:
        os.makedirs(folder + "/chunks")
        names = [os.path.join(folder, "chunks", name).encode() for name in ("chunk_0", "chunk_1", "chunk_2")]

        def write(name):
            with open(name, "wb"):
                pass

        for name in names[:2]:
            write(name)
        variant = experimental.list_snapshot_chunks_dataset(folder, output_types=[tf.string], output_shapes=[[]])
        iterator = tf.data.make_initializable_iterator(_VariantDataset(variant, tf.TensorSpec([], tf.string)))
        following = iterator.get_next()
        session.run(iterator.initializer)
        assert [session.run(following), session.run(following)] == names[:2]
        with fails(tf.errors.DeadlineExceededError):
            session.run(following, options=tf.RunOptions(timeout_in_ms=200))
        write(names[2])
        write(os.path.join(folder, "DONE"))
        assert drained(session, following) == names[2:]
        session.run(iterator.initializer)
        assert drained(session, following) == names


def spec_of_stored():
    return tuple(tf.TensorSpec(s, t) for t, s in zip(STORED["output_types"], STORED["output_shapes"]))


NUMBERS = {"output_types": [tf.int64], "output_shapes": [[]]}


def of_numbers(variant):
    return _VariantDataset(variant, tf.TensorSpec([], tf.int64))


def elements_or_error(target, make, most=40):
    """Returns the first elements of a dataset in their printed form, then the class and the last line of the error, if any."""
    with tf.Graph().as_default(), tf.Session(target) as session:
        got = []
        try:
            dataset = make()
            iterator = tf.data.make_initializable_iterator(of_numbers(dataset) if isinstance(dataset, tf.Tensor) else dataset)
            following = iterator.get_next()
            session.run(iterator.initializer)
            while len(got) < most:
                got.append(session.run(following))
        except tf.errors.OutOfRangeError:
            pass
        except tf.errors.OpError as error:
            got.append((type(error).__name__, error.message.split("\n\t")[0].split("\n")[-1]))
        return str(got)


@check
def fingerprints_distinguish_what_datasets_compute(ours, theirs):
    def with_other_names():
        Dataset.range(3).map(lambda other: other * 7)
        return Dataset.range(10).map(plus_one)

    def plus_one(x):
        return x + 1

    def plus_captured(number):
        def make():
            captured = tf.constant(number, tf.int64)
            return Dataset.range(10).map(lambda x: x + captured)

        return make

    def branches(x):
        return tf.cond(x > 3, lambda: x * 2, lambda: x * 3)

    groups = [
        [lambda: Dataset.range(10), lambda: Dataset.range(10)],
        [lambda: Dataset.range(9)],
        [lambda: Dataset.range(10).map(plus_one), with_other_names],
        [lambda: Dataset.range(10).map(lambda x: x + 2)],
        [lambda: Dataset.range(10).map(lambda x: x - 1)],
        [plus_captured(4), plus_captured(4)],
        [plus_captured(5)],
        # TensorFlow's fingerprint may depend on the names of the branches, which have running numbers.
        [lambda: Dataset.range(10).map(branches)],
        [lambda: Dataset.range(10).shuffle(3, seed=1), lambda: Dataset.range(10).shuffle(3, seed=2)],
        [lambda: Dataset.range(10).shuffle(4, seed=1)],
        [lambda: Dataset.from_tensors(["a", "bc"]), lambda: Dataset.from_tensors(["a", "bc"])],
        [lambda: Dataset.from_tensors(["ab", "c"])],
        [lambda: Dataset.from_tensors([1.5]).repeat(2)],
        [lambda: Dataset.from_tensors([1.5]).repeat(3)],
        [lambda: Dataset.zip((Dataset.range(2), Dataset.range(3)))],
        [lambda: Dataset.zip((Dataset.range(3), Dataset.range(2)))],
        [lambda: Dataset.range(10).filter(lambda x: tf.random_uniform([]) < 0.5)],
    ]

    def fingerprint(target, make):
        with tf.Graph().as_default(), tf.Session(target) as session:
            return session.run(tf.raw_ops.DatasetFingerprint(input_dataset=make()._variant_tensor))

    assert fingerprint(ours, lambda: Dataset.range(10).map(branches)) == fingerprint(ours, lambda: Dataset.range(10).map(branches))
    for target in (ours, theirs):
        found = [{fingerprint(target, make) for make in group} for group in groups]
        for i, of_group in enumerate(found):
            assert len(of_group) == 1, (target, i, of_group)
        assert len(set.union(*found)) == len(groups), (target, found)


def snapshot_of(source, folder, **attributes):
    arguments = {"reader_func_other_args": [], "shard_func_other_args": [tf.constant(3, tf.int64)]}
    variant = experimental.snapshot_dataset_v2(source._variant_tensor, folder, **arguments, reader_func=one_shard_after_the_other, shard_func=shard_of, **attributes, **STORED)
    return _VariantDataset(variant, spec_of_stored())


def files_below(folder):
    return sorted(os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names)


@check
def snapshots_are_written_once_and_read_by_either_server(ours, theirs):
    whole = str([e for e in eval_elements(elements_or_error(theirs, lambda: stored_elements(10)))])
    in_order = str([e for shard in range(3) for e in eval_elements(whole)[shard::3]])
    for compression in ("", "GZIP", "SNAPPY", "AUTO"):
        for writer, reader in ((ours, theirs), (theirs, ours), (ours, ours)):
            with tempfile.TemporaryDirectory() as folder:
                make = lambda count=10: snapshot_of(stored_elements(count), folder, compression=compression, hash_valid=True, hash=-5)  # noqa: E731
                assert elements_or_error(writer, make, 4) == str(eval_elements(whole)[:4])
                begun = files_below(folder)
                # An incomplete snapshot is written anew.
                assert elements_or_error(writer, make) == whole
                written = files_below(folder)
                assert len(written) > len(begun) and f"{2**64 - 5}/snapshot.metadata" in written, written
                for target in (reader, writer):
                    # The input is not read any more.
                    assert elements_or_error(target, lambda: make(2)) == in_order, (compression, target)
                assert files_below(folder) == written


@check
def snapshots_are_found_by_the_fingerprint_of_their_dataset(ours, theirs):
    for target in (ours, theirs):
        with tempfile.TemporaryDirectory() as folder:
            lines = os.path.join(folder, "lines")
            with open(lines, "w") as file:
                file.write("a\nb\n")

            def make(count=-1, compression="GZIP"):
                snapshot = tf.data.experimental.snapshot(folder + "/snapshots", compression, shard_func=lambda line: np.int64(0))
                return tf.data.TextLineDataset(lines).take(count).apply(snapshot)

            first = elements_or_error(target, make)
            with open(lines, "w") as file:
                file.write("c\n")
            assert elements_or_error(target, make) == first == "[b'a', b'b']", first
            assert elements_or_error(target, lambda: make(compression="SNAPPY")) == "[b'c']"
            assert elements_or_error(target, lambda: make(3)) == "[b'c']"
            found = set(name.split("/")[0] for name in files_below(folder + "/snapshots"))
            assert len(found) == 3 and all(name.isdigit() for name in found), found
    for target in (ours, theirs):
        with tempfile.TemporaryDirectory() as folder:
            wrong = lambda: Dataset.range(3).apply(tf.data.experimental.snapshot(folder, shard_func=lambda i: tf.cast(i, tf.int32)))  # noqa: E731
            assert "`shard_func` must return a scalar int64." in elements_or_error(target, wrong, 3)


@check
def iterators_of_snapshots_are_saved_and_restored(ours, theirs):
    whole = eval_elements(elements_or_error(theirs, lambda: stored_elements(10)))
    in_order = [e for shard in range(3) for e in whole[shard::3]]
    with tempfile.TemporaryDirectory() as folder:
        make = lambda: snapshot_of(stored_elements(10), folder + "/files", compression="", hash_valid=True, hash=7)  # noqa: E731
        # The first is saved while it writes the files, and the restored iterator completes them.
        for count, expected in ((4, whole), (0, in_order), (4, in_order)):
            got = saved_and_restored(ours, make, count, os.path.join(folder, "state"))
            assert str(got) == str(expected[count:]), (count, got)
        assert len([name for name in os.listdir(folder + "/files/7") if name.isdigit()]) == 1


def first_snapshot(source, folder, **attributes):
    return _VariantDataset(experimental.snapshot_dataset(source._variant_tensor, folder, **attributes, **STORED), spec_of_stored())


@check
def snapshots_of_the_first_version_are_exchanged(ours, theirs):
    whole = elements_or_error(theirs, lambda: stored_elements(10))
    for compression in ("", "GZIP", "SNAPPY"):
        for writer, reader in ((ours, theirs), (theirs, ours)):
            with tempfile.TemporaryDirectory() as folder:
                make = lambda count=10, **more: first_snapshot(stored_elements(count), folder, compression=compression, snapshot_name="n", **more)  # noqa: E731
                assert elements_or_error(writer, make) == whole
                assert "custom-n/custom/00000000.snapshot" in files_below(folder), files_below(folder)
                for target in (reader, writer):
                    assert elements_or_error(target, lambda: make(2)) == whole, (compression, target)
                    assert elements_or_error(target, lambda: make(2, mode="read")) == whole
                    assert elements_or_error(target, lambda: make(2, mode="passthrough")) == elements_or_error(theirs, lambda: stored_elements(2))
    for target in (ours, theirs):
        with tempfile.TemporaryDirectory() as folder:
            make = lambda count=10, **more: first_snapshot(stored_elements(count), folder, **more)  # noqa: E731
            few = elements_or_error(theirs, lambda: stored_elements(2))
            # While one iterator writes, others pass the elements on.
            assert elements_or_error(target, lambda: make(snapshot_name="n"), 2) == few
            assert elements_or_error(target, lambda: make(2, snapshot_name="n")) == few
            assert elements_or_error(target, lambda: make(2, mode="write", snapshot_name="n")) == few
            # TensorFlow's writer appends to the file of the first iterator.
            again = elements_or_error(target, lambda: make(snapshot_name="n"))
            assert again == few if target == ours else again.endswith(few[1:]), again
            assert "Metadata file does not exist." in elements_or_error(target, lambda: make(mode="read"))
            for attribute in ({"mode": "other"}, {"pending_snapshot_expiry_seconds": 0}, {"compression": "ZLIB"}):
                wrong = [elements_or_error(t, lambda: make(**attribute)) for t in (target, theirs)]
                assert wrong[0] == wrong[1] and "InvalidArgument" in wrong[0], wrong
    with tempfile.TemporaryDirectory() as folder:
        make = lambda **more: first_snapshot(stored_elements(10), folder, shard_size_bytes=500, **more)  # noqa: E731
        assert elements_or_error(ours, make) == whole
        assert len([name for name in files_below(folder) if name.endswith(".snapshot")]) > 1, files_below(folder)
        assert elements_or_error(ours, make) == whole
        shuffled = elements_or_error(ours, lambda: make(shuffle_on_read=True, seed=3))
        assert shuffled != whole and sorted(map(str, eval_elements(shuffled))) == sorted(map(str, eval_elements(whole)))
        restored = saved_and_restored(ours, make, 6, folder + "/state")
        assert str(restored) == str(eval_elements(whole)[6:])


@function.Defun(tf.int64)
def ten_times(x):
    return x * 10


def globally_shuffled(dataset, seeds=(3, 4), generator=None, **attributes):
    seed, seed2 = (tf.constant(number, tf.int64) for number in seeds)
    generator = generator() if generator else tf.raw_ops.DummySeedGenerator()
    return of_numbers(tf.raw_ops.GlobalShuffleDataset(input_dataset=dataset._variant_tensor, seed=seed, seed2=seed2, seed_generator=generator, **attributes, **NUMBERS))


def ten_times_each(dataset, parallel=False):
    arguments = {"input_dataset": dataset._variant_tensor, "other_arguments": [], "f": ten_times, "preserve_cardinality": True, **NUMBERS}
    if parallel:
        return of_numbers(tf.raw_ops.ParallelMapDatasetV2(num_parallel_calls=tf.constant(2, tf.int64), **arguments))
    return of_numbers(tf.raw_ops.MapDataset(**arguments))


@check
def global_shuffles_have_the_order_of_tensorflow(ours, theirs):
    def generator():
        seeds = {"seed": tf.constant(5, tf.int64), "seed2": tf.constant(6, tf.int64)}
        return tf.raw_ops.AnonymousSeedGenerator(reshuffle=tf.constant(True), **seeds).handle

    numbers = Dataset.range
    made = {
        "range": lambda: globally_shuffled(numbers(10)),
        "many": lambda: globally_shuffled(numbers(70_000)),
        "one": lambda: globally_shuffled(numbers(1)),
        "repeated": lambda: globally_shuffled(numbers(5)).repeat(3),
        "the same order": lambda: globally_shuffled(numbers(5), reshuffle_each_iteration=False).repeat(2),
        "a generator": lambda: globally_shuffled(numbers(8), generator=generator).repeat(2),
        "map": lambda: globally_shuffled(ten_times_each(numbers(10))),
        "parallel map": lambda: globally_shuffled(ten_times_each(numbers(10), True)),
        "then map": lambda: globally_shuffled(numbers(10)).map(lambda x: x + 100),
        "then take": lambda: globally_shuffled(numbers(10)).take(4),
        "repeat": lambda: globally_shuffled(numbers(4).repeat(2)),
        "take": lambda: globally_shuffled(numbers(9).take(5)),
        "skip": lambda: globally_shuffled(numbers(9).skip(4)),
        "shard": lambda: globally_shuffled(numbers(9).shard(3, 2)),
        "concatenate": lambda: globally_shuffled(numbers(4).concatenate(numbers(10, 14))),
        "cache": lambda: globally_shuffled(numbers(6).cache()),
        "prefetch": lambda: globally_shuffled(numbers(6).prefetch(2)),
        "slices": lambda: globally_shuffled(Dataset.from_tensor_slices(tf.range(tf.constant(12, tf.int64)))),
        "options": lambda: globally_shuffled(numbers(6).with_options(tf.data.Options())),
        "cardinality": lambda: globally_shuffled(numbers(6).apply(tf.data.experimental.assert_cardinality(6))),
        "shuffled": lambda: globally_shuffled(globally_shuffled(numbers(7))).repeat(2),
        "shuffled and mapped": lambda: globally_shuffled(ten_times_each(globally_shuffled(numbers(7)))),
        "shuffled parts": lambda: globally_shuffled(globally_shuffled(numbers(3)).concatenate(globally_shuffled(numbers(10, 13)))),
        "filter": lambda: globally_shuffled(numbers(9).filter(lambda x: x > 3)),
        "part of a filter": lambda: globally_shuffled(numbers(5).concatenate(numbers(9).filter(lambda x: x > 3))),
        "shuffle": lambda: globally_shuffled(numbers(9).shuffle(3)),
        "endless": lambda: globally_shuffled(numbers(9).repeat()),
        "no repetition": lambda: globally_shuffled(numbers(9).repeat(0)),
        "empty": lambda: globally_shuffled(numbers(9).skip(20)),
        "unknown": lambda: globally_shuffled(numbers(9).map(lambda x: x)),
    }
    for name, make in made.items():
        got = [elements_or_error(target, make) for target in (ours, theirs)]
        if "cardinality of" in got[1] or "Got cardinality" in got[1]:
            # The text of a dataset differs.
            got = [text.split(" for dataset")[0] for text in got]
        assert got[0] == got[1], (name, *got)
    random = lambda: globally_shuffled(numbers(1000), (0, 0))  # noqa: E731
    assert elements_or_error(ours, random) != elements_or_error(ours, random)
    for target in (ours, theirs):
        with tf.Graph().as_default(), tf.Session(target) as session, fails(tf.errors.UnimplementedError, "Random access is not implemented"):
            session.run(tf.raw_ops.GetElementAtIndex(dataset=globally_shuffled(numbers(5))._variant_tensor, index=tf.constant(1, tf.int64), **NUMBERS))


def produced_bytes(dataset, tag="bytes", experimental_op=False, of=NUMBERS):
    op = tf.raw_ops.ExperimentalBytesProducedStatsDataset if experimental_op else tf.raw_ops.BytesProducedStatsDataset
    return op(input_dataset=dataset._variant_tensor, tag=tag, **of)


def with_aggregator(variant, aggregator, tag, of=NUMBERS):
    return tf.raw_ops.SetStatsAggregatorDataset(input_dataset=variant, stats_aggregator=aggregator, tag=tag, counter_prefix="", **of)


def values_of(summary):
    """Returns the values of a summary by tag; of times only the number is kept."""
    found = {}
    for value in tf.Summary.FromString(summary).value:
        found[value.tag] = value.histo.num if value.tag.endswith("latency") else str(value)
    return found


@check
def statistics_are_recorded_in_aggregators(ours, theirs):
    strings = {"output_types": [tf.string], "output_shapes": [[]]}

    def run(target):
        got = []
        with tf.Graph().as_default(), tf.Session(target) as session:
            for tag in ("", "tag"):
                aggregator = tf.raw_ops.StatsAggregatorHandle(container="", shared_name=f"aggregator{tag}{os.getpid()}")
                summary = tf.raw_ops.StatsAggregatorSummary(iterator=aggregator)
                latency = tf.raw_ops.LatencyStatsDataset(input_dataset=produced_bytes(Dataset.range(5).batch(2), of=BATCHES), tag="latency", **BATCHES)
                iterator = tf.data.make_initializable_iterator(_VariantDataset(with_aggregator(latency, aggregator, tag, BATCHES), tf.TensorSpec([None], tf.int64)))
                following = iterator.get_next()
                session.run(iterator.initializer)
                drained(session, following)
                got.append(values_of(session.run(summary)))
            texts = Dataset.from_tensor_slices([b"abc", b"d" * 100, b""])
            recorded = with_aggregator(produced_bytes(texts, "texts", True, strings), aggregator, "", strings)
            iterator = tf.data.make_initializable_iterator(_VariantDataset(recorded, tf.TensorSpec([], tf.string)))
            session.run(iterator.initializer)
            drained(session, iterator.get_next())
            got.append(values_of(session.run(summary)))
            # Without an aggregator nothing is recorded.
            assert drained_once(session, of_numbers(produced_bytes(Dataset.range(3)))) == [0, 1, 2]
            writer = tf.raw_ops.SummaryWriter(shared_name="", container="")
            for wrong in (lambda: tf.raw_ops.StatsAggregatorSummary(iterator=writer), lambda: with_aggregator(Dataset.range(3)._variant_tensor, writer, "")):
                with fails((tf.errors.InvalidArgumentError, tf.errors.NotFoundError), "tensorflow::data::StatsAggregatorResource"):
                    session.run(wrong())
        return got

    got = [run(ours), run(theirs)]
    assert got[0] == got[1], got


BATCHES = {"output_types": [tf.int64], "output_shapes": [[None]]}


def drained_once(session, dataset):
    iterator = tf.data.make_initializable_iterator(dataset)
    session.run(iterator.initializer)
    return drained(session, iterator.get_next())


@check
def statistics_are_written_to_event_files(ours, theirs):
    def run(target):
        with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default(), tf.Session(target) as session:
            aggregator = tf.raw_ops.StatsAggregatorHandleV2(container="", shared_name="")
            writer = tf.raw_ops.SummaryWriter(shared_name=f"statistics{os.getpid()}", container="")
            session.run(tf.raw_ops.CreateSummaryFileWriter(writer=writer, logdir=folder, max_queue=1, flush_millis=1000, filename_suffix=""))
            session.run(tf.raw_ops.StatsAggregatorSetSummaryWriter(stats_aggregator=aggregator, summary=writer))
            drained_once(session, of_numbers(with_aggregator(produced_bytes(Dataset.range(4)), aggregator, "tag")))
            assert session.run(tf.raw_ops.StatsAggregatorSummary(iterator=aggregator)) == b""
            session.run(tf.raw_ops.CloseSummaryWriter(writer=writer))
            events = tf.train.summary_iterator(os.path.join(folder, os.listdir(folder)[0]))
            return [(event.step, str(event.summary)) for event in events if event.HasField("summary")]

    got = [run(ours), run(theirs)]
    assert got[0] == got[1] and len(got[0]) == 4, got


@check
def models_of_iterators_name_their_datasets(ours, theirs):
    from tensorflow.core.framework import model_pb2

    def run(target, make):
        with tf.Graph().as_default(), tf.Session(target) as session:
            iterator = tf.data.make_initializable_iterator(make())
            following, model = iterator.get_next(), tf.raw_ops.IteratorGetModelProto(iterator=iterator._iterator_resource)
            with fails(tf.errors.FailedPreconditionError, "GetModelProto() failed because the iterator has not been initialized."):
                session.run(model)
            session.run(iterator.initializer)
            for _ in range(3):
                session.run(following)
            parsed = model_pb2.ModelProto.FromString(session.run(model))
            names, at = [], parsed.output
            while True:
                names.append(parsed.nodes[at].name)
                if not parsed.nodes[at].inputs:
                    return names, parsed.nodes[parsed.output].num_elements, parsed.nodes[parsed.output].bytes_produced
                (at,) = parsed.nodes[at].inputs

    # TensorFlow rewrites other pipelines.
    plain = lambda: Dataset.range(9).take(8).prefetch(1)  # noqa: E731
    (names, *counts), (_, *their_counts) = run(ours, plain), run(theirs, plain)
    assert names == ["Root", "Prefetch", "Take", "Range"] and counts == their_counts == [3, 24], (names, counts, their_counts)
    options = tf.data.Options()
    options.autotune.enabled = False
    for target in (ours, theirs):
        with fails(tf.errors.NotFoundError, "Cannot find this iterator's analytical model."):
            run(target, lambda: plain().with_options(options))


@check
def options_and_batch_sizes_are_those_of_tensorflow(ours, theirs):
    def with_options(dataset, **given):
        options = tf.data.Options()
        for name, value in given.items():
            setattr(options, name, value)
        return dataset.with_options(options)

    def made():
        first = with_options(Dataset.range(6), deterministic=False, experimental_slack=True)
        options = tf.data.Options()
        options.threading.private_threadpool_size = 3
        second = Dataset.range(6).with_options(options).batch(2)
        both = [Dataset.range(3), first, second, with_options(first.take(2), deterministic=True), first.batch(2).concatenate(second)]
        b = Dataset.range(8).batch(2)
        sized = [Dataset.range(5), b, b.map(abs), b.prefetch(1), b.unbatch(), b.batch(3), b.take(1).repeat(2).shuffle(3).skip(1).shard(2, 0)]
        sized += [b.filter(lambda x: x[0] > 1), Dataset.range(8).padded_batch(3, []), Dataset.zip((b, b)), b.concatenate(b.batch(1)), b.cache(), b.window(2)]
        sized += [first.batch(4).with_options(options), Dataset.range(8).apply(tf.data.experimental.map_and_batch(abs, 3))]
        return [tf.raw_ops.GetOptions(input_dataset=d._variant_tensor) for d in both] + [tf.raw_ops.ComputeBatchSize(input_dataset=d._variant_tensor) for d in sized]

    def run(target):
        with tf.Graph().as_default(), tf.Session(target) as session:
            return session.run(made())

    assert run(ours) == run(theirs), (run(ours), run(theirs))


@check
def error_messages_are_those_of_tensorflow(ours, theirs):
    n = tf.placeholder_with_default
    number = {"output_types": [tf.int64], "output_shapes": [[]]}
    numbers = lambda: Dataset.range(3)._variant_tensor  # noqa: E731
    made = lambda variant: _VariantDataset(variant, tf.TensorSpec([], tf.int64))  # noqa: E731
    wrong = [
        ("step must be a non-zero integer.", lambda v: Dataset.range(0, 3, v), 0),
        ("buffer_size must be greater than zero", lambda v: Dataset.range(3).shuffle(v), 0),
        ("Number of shards must be greater than zero (currently num_shards = 0).", lambda v: Dataset.range(3).shard(v, 5), 0),
        ("Index must be between 0 and 1 (currently index = 5).", lambda v: Dataset.range(3).shard(2, v), 5),
        ("buffer_size must be >= 0 or set buffer_size to be -1 for auto-tuning", lambda v: Dataset.range(3).prefetch(v), -5),
        ("Window size must be greater than zero.", lambda v: Dataset.range(3).window(v), -5),
        ("cycle_length must be greater than zero.", lambda v: Dataset.range(3).interleave(Dataset.range, cycle_length=v), -5),
        ("All components must be at least 1-dimensional", lambda v: Dataset.from_tensor_slices(v), 1),
        ("Batch size must be greater than zero.", lambda v: Dataset.range(3).apply(tf.data.experimental.dense_to_sparse_batch(v, [])), 0),
        ("`sleep_microseconds` must be >= 0", lambda v: made(tf.raw_ops.SleepDataset(input_dataset=numbers(), sleep_microseconds=v, **number)), -1),
        ("row_shape must be a vector", lambda v: made(tf.raw_ops.DenseToSparseBatchDataset(input_dataset=numbers(), batch_size=v, row_shape=n(np.int64([[1]]), None), output_types=[tf.variant], output_shapes=[None])), 1),
        ("Input 1 needs to have at least 6 elements. It only has 3 elements.", lambda v: made(tf.raw_ops.WeightedFlatMapDataset(input_datasets=[Dataset.range(6)._variant_tensor, numbers()], weights=[tf.cast(v, tf.float64), tf.constant(5.0, tf.float64)], **number)), 1),
        ("`weights` must be greater than 0.0. Input 0 has a weight of -1", lambda v: made(tf.raw_ops.WeightedFlatMapDataset(input_datasets=[numbers(), numbers()], weights=[tf.cast(v, tf.float64)] * 2, **number)), -1),
        ("Cardinalities of the inputs must be known. Input 0 has INFINITE cardinality.", lambda v: made(tf.raw_ops.WeightedFlatMapDataset(input_datasets=[Dataset.range(v).repeat()._variant_tensor, numbers()], weights=[tf.constant(1.0, tf.float64)] * 2, **number)), 3),
        ("All inputs to ChooseFastestDataset must have compatible cardinalities. Input 1 has cardinality: 3, while all prior inputs have cardinality: 5.", lambda v: made(tf.raw_ops.ChooseFastestDataset(input_datasets=[Dataset.range(v)._variant_tensor, numbers()], num_experiments=1, **number)), 5),
    ]
    for target in (ours, theirs):
        for text, make, value in wrong:
            with tf.Graph().as_default(), tf.Session(target) as session:
                # The shape is hidden, because otherwise Python would refuse the dataset.
                shape = None if "components" in text else []
                iterator = tf.data.make_initializable_iterator(make(n(np.int64(value), shape)))
                with fails(tf.errors.InvalidArgumentError, text):
                    session.run(iterator.initializer)


def until(holds):
    """Polls a condition until it holds, for at most 30 s."""
    import time

    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "the condition did not become true"


OTHER = []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--other", default="", help="another worker of the cluster: its target")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.other:
        OTHER.extend(["/job:worker/task:0", "/job:worker/task:1", options.other])
    server = tf.train.Server.create_local_server()
    wrong = 0
    for make in PIPELINES:
        for one_shot in (False, True):
            name = make.__name__ + (", one shot" if one_shot else "")
            if options.only not in name:
                continue
            try:
                theirs = elements(server.target, make, one_shot)
                ours = elements(options.target, make, one_shot)
                same(ours[0], theirs[0])
                assert ours[1] == theirs[1], (ours[1], theirs[1])
                print("ok", name)
            except Exception as error:  # pylint: disable=broad-except
                wrong += 1
                print("WRONG", name, type(error).__name__, (getattr(error, "message", None) or str(error)).replace("Graph execution error:", "").strip()[-700:], flush=True)
    for f in CHECKS:
        if options.only not in f.__name__:
            continue
        try:
            f(options.target, server.target)
            print("ok", f.__name__)
        except Exception as error:  # pylint: disable=broad-except
            wrong += 1
            print("WRONG", f.__name__, type(error).__name__, (getattr(error, "message", None) or str(error)).replace("Graph execution error:", "").strip()[-700:], flush=True)
    print(f"{wrong} wrong")
    raise SystemExit(1 if wrong else 0)


main()
