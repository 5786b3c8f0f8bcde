"""Input pipelines of tf.data as TensorFlow-1 programs write them: on a server of ours (`--target`) and on TensorFlow's
own, element by element; and what sessions share, wait for and fail with."""
import argparse
import gzip
import os
import tempfile
import threading
import zlib

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

Dataset = tf.data.Dataset
PIPELINES = []
CHECKS = []


def pipeline(f):
    """A function that makes a dataset, whose elements are compared."""
    PIPELINES.append(f)
    return f


def check(f):
    """A function of targets that asserts."""
    CHECKS.append(f)
    return f


def fails(error, *parts):
    """A context that wants `error`, with all of `parts` in its message."""

    class Wanted:
        def __enter__(self):
            return self

        def __exit__(self, kind, value, _):
            assert kind is not None, f"{error.__name__} was expected, nothing failed"
            assert issubclass(kind, error), f"{error.__name__} was expected, got {kind.__name__}: {value}"
            for part in parts:
                assert part in str(value), f"'{part}' is not in: {value}"
            return True

    return Wanted()


MOST = 60


def elements(target, make, one_shot):
    """Up to MOST elements of a pipeline, each a list of arrays; last the error's class and text, or the end."""
    with tf.Graph().as_default():
        tf.set_random_seed(17)
        dataset = make()
        if one_shot:
            iterator = tf.data.make_one_shot_iterator(dataset)
        else:
            iterator = tf.data.make_initializable_iterator(dataset)
        parts = tf.nest.flatten(iterator.get_next(), expand_composites=True)
        with tf.Session(target) as session:
            if not one_shot:
                session.run(iterator.initializer)
            got = []
            while len(got) < MOST:
                try:
                    got.append(session.run(parts))
                except tf.errors.OutOfRangeError as end:
                    assert "End of sequence" in str(end), end
                    assert end.op is not None and end.op.type == "IteratorGetNext", end.op
                    return got, "end"
                except tf.errors.OpError as error:
                    got.append(type(error).__name__)
                    if got[-3:] == [got[-1]] * 3:
                        break
            return got, "more"


def same(ours, theirs):
    assert len(ours) == len(theirs), f"{len(ours)} elements, not {len(theirs)}: {ours} {theirs}"
    for i, (a, b) in enumerate(zip(ours, theirs)):
        assert type(a) is type(b) and len(a) == len(b), f"element {i}: {a} {b}"
        if isinstance(a, str):
            assert a == b, f"element {i}: {a} {b}"
            continue
        for x, y in zip(a, b):
            x, y = np.asarray(x), np.asarray(y)
            assert x.shape == y.shape, f"element {i}: {x} {y}"
            if x.dtype.kind in "OS":
                assert x.tolist() == y.tolist(), f"element {i}: {x} {y}"
            else:
                np.testing.assert_array_equal(x, y, err_msg=f"element {i}")
                assert x.dtype == y.dtype


@pipeline
def tensors():
    return Dataset.from_tensors((np.arange(6).reshape(2, 3), b"one", 1.5))


@pipeline
def slices_of_many_types():
    types = ["int8", "int16", "int32", "int64", "uint8", "uint16", "float16", "float32", "float64", "bool", "complex64"]
    rows = {t: np.arange(6).reshape(3, 2).astype(t) for t in types}
    rows["string"] = np.array([b"a", b"", b"\xff\x00"])
    return Dataset.from_tensor_slices(rows)


@pipeline
def slices_shuffled_repeated_and_batched():
    return Dataset.from_tensor_slices(np.arange(13)).shuffle(5, seed=3).repeat(3).batch(4)


@pipeline
def shuffled_whole():
    return Dataset.range(20).shuffle(100, seed=1)


@pipeline
def shuffled_the_same_each_time():
    return Dataset.range(7).shuffle(3, seed=9, reshuffle_each_iteration=False).repeat(3)


@pipeline
def shuffled_twice():
    return Dataset.range(9).shuffle(4, seed=2).shuffle(9, seed=5).repeat(2)


@pipeline
def one_shuffle_in_two_places():
    d = Dataset.range(6).shuffle(6, seed=3)
    return Dataset.zip((d, d.map(lambda x: x + 0))).repeat(2)


@pipeline
def one_shuffle_before_and_after():
    d = Dataset.range(6).shuffle(6, seed=3)
    return d.repeat(2).concatenate(d)


@pipeline
def one_shuffle_chosen_from_twice():
    d = Dataset.range(6).shuffle(6, seed=3)
    return tf.data.experimental.choose_from_datasets([d, d], Dataset.range(2).repeat(6))


@pipeline
def one_shuffle_for_each_element():
    d = Dataset.range(6).shuffle(6, seed=3)
    return Dataset.range(3).flat_map(lambda _: d)


@pipeline
def repeated_then_shuffled_across_epochs():
    return Dataset.range(4).repeat().shuffle(7, seed=11)


@pipeline
def shuffled_and_repeated_as_one():
    return Dataset.range(5).apply(tf.data.experimental.shuffle_and_repeat(3, count=4, seed=7))


@pipeline
def shuffled_and_repeated_without_end_through_a_large_buffer():
    return Dataset.range(3).apply(tf.data.experimental.shuffle_and_repeat(50, seed=8))


@pipeline
def ranges():
    return Dataset.range(10, -7, -3).concatenate(Dataset.range(2, 9, 4))


@pipeline
def taken_skipped_sharded_and_zipped():
    a = Dataset.range(20).skip(3).take(11).shard(3, 1)
    return Dataset.zip((a, Dataset.from_tensor_slices(["a", "b", "c"]), Dataset.range(5)))


@pipeline
def batches_with_and_without_remainder():
    a = Dataset.from_tensor_slices(np.arange(14).reshape(7, 2)).batch(3)
    b = Dataset.from_tensor_slices(np.arange(14).reshape(7, 2)).batch(3, drop_remainder=True)
    return a.concatenate(b)


@pipeline
def unbatched():
    rows = np.arange(12).reshape(4, 3)
    return Dataset.from_tensor_slices((rows, rows.astype(str))).batch(2).apply(tf.data.experimental.unbatch())


@pipeline
def cached():
    return Dataset.range(4).shuffle(4, seed=6).cache().repeat(3)


@pipeline
def prefetched():
    return Dataset.range(40).prefetch(3).batch(7).prefetch(tf.data.experimental.AUTOTUNE)


@pipeline
def nothing():
    return Dataset.range(0).repeat().shuffle(3).batch(2)


@pipeline
def unique():
    return Dataset.from_tensor_slices([3, 1, 3, 2, 1, 4]).apply(tf.data.experimental.unique())


@pipeline
def random_numbers():
    return tf.data.experimental.RandomDataset(seed=4).take(9)


@pipeline
def sparse_slices():
    st = tf.SparseTensor([[0, 0], [0, 2], [2, 1]], [1.0, 2.0, 3.0], [4, 3])
    return Dataset.from_tensor_slices(st)


@pipeline
def sampled():
    datasets = [Dataset.from_tensors(i).repeat(i + 2) for i in range(3)]
    return tf.data.experimental.choose_from_datasets(datasets, Dataset.range(3).repeat(4))


@pipeline
def with_options():
    options = tf.data.Options()
    options.experimental_deterministic = False
    options.experimental_optimization.apply_default_optimizations = False
    return Dataset.range(5).with_options(options)


FILES = tempfile.mkdtemp()


def lines(name, text):
    path = os.path.join(FILES, name)
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(text)
    return path


@pipeline
def text_lines():
    paths = [lines("a.txt", b"one\ntwo\r\n\nthree"), lines("b.txt", b""), lines("c.txt", b"four\n")]
    return tf.data.TextLineDataset(paths).skip(1)


@pipeline
def records():
    path = os.path.join(FILES, "records")
    if not os.path.exists(path):
        with tf.io.TFRecordWriter(path) as writer:
            for i in range(5):
                writer.write(b"x" * i)
    return tf.data.TFRecordDataset([path, path])


@pipeline
def compressed_records():
    path = os.path.join(FILES, "zipped")
    if not os.path.exists(path):
        with tf.io.TFRecordWriter(path, "GZIP") as writer:
            for i in range(5):
                writer.write(b"y" * i)
    return tf.data.TFRecordDataset(path, "GZIP")


CSV = b'''1,2.5,a,x
2,"3","c""d",
,,"",y
4,5,"two
lines",z
5,6,b"c,w
6,7,"b"c,
v",u
7,8,e
8,9,f,g,h
x,10,i,j
12345678901,11,k,l


12, 13 ,m,"n"'''


def csv(name, text, defaults, **options):
    made = tf.compat.v2.data.experimental.CsvDataset([lines(f"{name}{i}.csv", part) for i, part in enumerate(text)], defaults(), **options)
    return made.map(lambda *columns: tf.strings.join([tf.as_string(c) for c in columns], "|"))


def filled():
    return [tf.constant([7]), tf.constant([0.5]), tf.constant(["q"]), tf.constant(["r"])]


@pipeline
def values_with_commas():
    return csv("values", [CSV, b"", CSV[:9]], filled)


@pipeline
def values_that_are_required():
    return csv("required", [CSV], lambda: [tf.int32, tf.float32, tf.string, tf.string])


@pipeline
def values_in_chosen_columns():
    return csv("chosen", [CSV], lambda: [tf.float64, tf.string], select_cols=[1, 3])


@pipeline
def values_without_some_columns():
    return csv("without", [CSV], lambda: filled()[1:3], exclude_cols=[0, 3], na_value="3")


@pipeline
def values_after_a_header():
    return csv("header", [b'a,"b\nc"\n1;2\n', b"", b"a,b", b"a\n3;4\n"], lambda: [tf.int64, tf.int32], header=True, field_delim=";", buffer_size=2)


@pipeline
def values_without_quotes():
    return csv("bare", [b'1,"a"\n2,b"c'], lambda: [tf.int32, tf.string], use_quote_delim=False)


@pipeline
def values_within_quotes_that_end_nowhere():
    return csv("open", [b'1,"a\n2,b\n', b"3,c"], lambda: [tf.int32, tf.string])


@pipeline
def blocks():
    path = lines("blocks", b"HH" + bytes(range(12)) + b"F")
    return tf.data.FixedLengthRecordDataset(path, 4, header_bytes=2, footer_bytes=1)


@pipeline
def files_that_are_not_there():
    return tf.data.TextLineDataset([os.path.join(FILES, "missing"), lines("c.txt", b"four\n")])


@pipeline
def blocks_that_do_not_fit():
    return tf.data.FixedLengthRecordDataset(lines("c.txt", b"four\n"), 4)


def cut_off(name, packed):
    """The first half of a file."""
    return lines(name, packed[: len(packed) // 2])


NOISE = np.random.RandomState(3).choice(list(b"abcdefghijklmnopqrstuvwxyz0123456789\n"), 1500).astype(np.uint8).tobytes()


@pipeline
def compressed_blocks_cut_off():
    return tf.data.FixedLengthRecordDataset(cut_off("blocks.gz", gzip.compress(NOISE)), 23, compression_type="GZIP")


@pipeline
def compressed_lines_cut_off():
    return tf.data.TextLineDataset(cut_off("lines.zlib", zlib.compress(NOISE)), "ZLIB")


def damaged(name, compression, count, change):
    """Records in a file of which `change` gives other bytes. How many come before the error depends on the size of the
    pieces that are decompressed at once."""
    whole, path = os.path.join(FILES, f"whole-{name}"), os.path.join(FILES, name)
    if not os.path.exists(path):
        noise = np.random.RandomState(5)
        with tf.io.TFRecordWriter(whole, compression) as writer:
            for _ in range(count):
                writer.write(noise.bytes(500))
        with open(whole, "rb") as file:
            lines(name, bytes(change(bytearray(file.read()))))
    return tf.data.TFRecordDataset(path, compression)


def flipped(at):
    def change(packed):
        packed[at] ^= 255
        return packed

    return change


@pipeline
def compressed_records_of_another_checksum():
    return damaged("sum.gz", "GZIP", 5, flipped(-8))


@pipeline
def compressed_records_of_another_length():
    return damaged("length.gz", "GZIP", 5, flipped(-1))


@pipeline
def many_compressed_records_of_another_checksum():
    return damaged("sums.gz", "GZIP", 1200, flipped(-8)).map(tf.strings.length).batch(50)


@pipeline
def many_records_of_another_adler():
    return damaged("sums.zlib", "ZLIB", 1200, flipped(-1)).map(tf.strings.length).batch(50)


@pipeline
def compressed_records_with_a_head_of_another_kind():
    return damaged("head.gz", "GZIP", 5, flipped(2))


@pipeline
def compressed_records_and_rubbish():
    return damaged("rubbish.gz", "GZIP", 5, lambda packed: packed + b"rubbish")


@pipeline
def compressed_records_twice():
    return damaged("twice.gz", "GZIP", 5, lambda packed: packed + packed)


@pipeline
def compressed_lines_of_another_checksum():
    packed = bytearray(gzip.compress(NOISE))
    packed[-8] ^= 255
    return tf.data.TextLineDataset(lines("lines.gz", bytes(packed)), "GZIP")


@pipeline
def compressed_records_cut_off():
    path = os.path.join(FILES, "records.zlib")
    with tf.io.TFRecordWriter(path, "ZLIB") as writer:
        for i in range(0, len(NOISE), 70):
            writer.write(NOISE[i : i + 70])
    with open(path, "rb") as file:
        return tf.data.TFRecordDataset(cut_off("cut.zlib", file.read()), "ZLIB")


@pipeline
def blocks_of_a_file_whose_footer_is_cut_off():
    return tf.data.FixedLengthRecordDataset(lines("d.txt", b"ab"), 4, header_bytes=2, footer_bytes=1)


@pipeline
def mapped():
    table = tf.constant([10, 20, 30, 40], tf.int64)
    return Dataset.range(4).map(lambda i: (tf.gather(table, i), tf.gather(["a", "b", "c", "d"], i)))


@pipeline
def mapped_in_parallel():
    return Dataset.range(30).map(lambda i: i * i, num_parallel_calls=4).batch(4)


@pipeline
def mapped_and_batched():
    return Dataset.range(10).apply(tf.data.experimental.map_and_batch(lambda i: (i, tf.fill([2], i)), 4, num_parallel_calls=3))


@pipeline
def filtered():
    return Dataset.range(20).filter(lambda i: tf.equal(i % 3, 1))


@pipeline
def flat_mapped():
    return Dataset.range(5).flat_map(lambda i: Dataset.range(i).map(lambda j: 10 * i + j))


@pipeline
def interleaved():
    return Dataset.range(1, 6).interleave(lambda i: Dataset.from_tensors(i).repeat(i), cycle_length=3, block_length=2)


@pipeline
def interleaved_in_parallel():
    return Dataset.range(1, 8).interleave(
        lambda i: Dataset.from_tensors(i).repeat(i + 1), cycle_length=3, block_length=2, num_parallel_calls=2
    )


@pipeline
def interleaved_in_parallel_as_once():
    return Dataset.range(1, 6).apply(
        tf.data.experimental.parallel_interleave(lambda i: Dataset.from_tensors(i).repeat(i), cycle_length=2)
    )


@pipeline
def padded():
    return Dataset.range(1, 8).map(lambda i: (tf.fill([i], i), tf.fill([2, i], "a"))).padded_batch(3, ([None], [3, -1]), (tf.constant(-1, tf.int64), "?"))


@pipeline
def padded_too_narrow():
    return Dataset.range(1, 4).map(lambda i: tf.fill([i], i)).padded_batch(2, [1])


@pipeline
def batches_of_different_shapes():
    return Dataset.from_tensors(0).concatenate(Dataset.from_tensors(1)).map(lambda i: tf.fill([i], i)).repeat(2).batch(2)


@pipeline
def scanned():
    return Dataset.range(6).apply(tf.data.experimental.scan(tf.constant(1, tf.int64), lambda s, x: (s + x, s * x)))


@pipeline
def taken_while():
    return Dataset.range(9).apply(tf.data.experimental.take_while(lambda i: i < 4))


@pipeline
def windows():
    return Dataset.range(9).window(3, shift=2, stride=2).flat_map(lambda w: w.batch(3))


@pipeline
def grouped_by_window():
    group = tf.data.experimental.group_by_window(lambda i: i % 3, lambda key, w: w.batch(2), window_size=2)
    return Dataset.range(11).apply(group)


@pipeline
def grouped_by_reducer():
    reducer = tf.data.experimental.Reducer(lambda key: tf.constant(0, tf.int64), lambda s, x: s + x, lambda s: s * 2)
    return Dataset.range(10).apply(tf.data.experimental.group_by_reducer(lambda i: i % 3, reducer))


@pipeline
def errors_in_order():
    return Dataset.from_tensor_slices([1, 7, 2, 8, 0]).map(lambda i: tf.gather([10, 20, 30], i), num_parallel_calls=3)


@pipeline
def errors_ignored():
    numbers = Dataset.from_tensor_slices([1, 7, 2, 8, 0]).map(lambda i: tf.gather([10, 20, 30], i))
    return numbers.apply(tf.data.experimental.ignore_errors())


@pipeline
def random_in_a_map():
    return Dataset.range(6).map(lambda i: tf.random_uniform([2], seed=3)).repeat(2)


@pipeline
def lines_of_interleaved_files():
    paths = [lines("a.txt", b"one\ntwo\r\n\nthree"), lines("c.txt", b"four\n")]
    return Dataset.from_tensor_slices(paths).interleave(tf.data.TextLineDataset, cycle_length=2)


@pipeline
def parsed_records():
    path = os.path.join(FILES, "examples")
    if not os.path.exists(path):
        with tf.io.TFRecordWriter(path) as writer:
            for i in range(5):
                feature = {"i": tf.train.Feature(int64_list=tf.train.Int64List(value=[i, i * i]))}
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    dataset = tf.data.TFRecordDataset(path).shuffle(10, seed=1).repeat(2).batch(3)
    return dataset.map(lambda s: tf.io.parse_example(s, {"i": tf.io.FixedLenFeature([2], tf.int64)})["i"])


@check
def an_iterator_says_when_it_is_not_initialised(ours, theirs):
    for target in (ours, theirs):
        with tf.Graph().as_default(), tf.Session(target) as session:
            iterator = tf.data.make_initializable_iterator(Dataset.range(3))
            following = iterator.get_next()
            with fails(tf.errors.FailedPreconditionError, "GetNext() failed because the iterator has not been initialized. Ensure that"):
                session.run(following)


@check
def an_iterator_starts_again_with_other_feeds(ours, theirs):
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
def an_iterator_takes_one_dataset_after_the_other(ours, theirs):
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
def a_handle_that_is_fed_chooses_the_iterator(ours, theirs):
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
def elements_go_to_another_task(ours, theirs):
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
    """What is left."""
    left = []
    try:
        while True:
            left.append(session.run(following))
    except tf.errors.OutOfRangeError:
        return left


def without_end(made):
    """Looks for an element that never comes; counts the steps of the search in a variable."""

    def never(i):
        with tf.control_dependencies([made.assign_add(1)]):
            return tf.less(i, 0)

    return Dataset.range(9).repeat().filter(never)


@check
def a_step_that_waits_for_an_element_ends_when_it_is_cancelled(ours, theirs):
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
            # What was searched for is given up with the next dataset.
            session.run(iterator.make_initializer(Dataset.range(5, 7)))
            assert [session.run(following), session.run(following)] == [5, 6]


@check
def closing_a_session_ends_what_waits_in_it(ours, theirs):
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
def elements_are_made_while_nobody_asks(ours, theirs):
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
        # One is taken, five are ready, and no more than that and one under way are ever made.
        until(lambda: session.run(seen) >= 6)
        assert session.run(seen) <= 7


@check
def a_function_reads_what_it_captures(ours, theirs):
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
                # Datasets of two steps are two.
                for _ in range(2):
                    session.run(second.initializer)
                    seen.append([drained(session, following) for following in followings])
        assert seen[:2] == seen[2:], seen


@check
def a_failing_function_names_its_node(ours, theirs):
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
def questions_about_datasets(ours, theirs):
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
def what_is_wrong_is_said_in_the_peers_words(ours, theirs):
    n = tf.placeholder_with_default
    wrong = [
        ("step must be a non-zero integer.", lambda v: Dataset.range(0, 3, v), 0),
        ("buffer_size must be greater than zero", lambda v: Dataset.range(3).shuffle(v), 0),
        ("Number of shards must be greater than zero (currently num_shards = 0).", lambda v: Dataset.range(3).shard(v, 5), 0),
        ("Index must be between 0 and 1 (currently index = 5).", lambda v: Dataset.range(3).shard(2, v), 5),
        ("buffer_size must be >= 0 or set buffer_size to be -1 for auto-tuning", lambda v: Dataset.range(3).prefetch(v), -5),
        ("Window size must be greater than zero.", lambda v: Dataset.range(3).window(v), -5),
        ("cycle_length must be greater than zero.", lambda v: Dataset.range(3).interleave(Dataset.range, cycle_length=v), -5),
        ("All components must be at least 1-dimensional", lambda v: Dataset.from_tensor_slices(v), 1),
    ]
    for target in (ours, theirs):
        for text, make, value in wrong:
            with tf.Graph().as_default(), tf.Session(target) as session:
                # The shape is hidden, or Python itself would refuse.
                shape = None if "components" in text else []
                iterator = tf.data.make_initializable_iterator(make(n(np.int64(value), shape)))
                with fails(tf.errors.InvalidArgumentError, text):
                    session.run(iterator.initializer)


def until(holds):
    """Asks until it holds; the test's own deadline ends it otherwise."""
    import time

    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "never came true"


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
