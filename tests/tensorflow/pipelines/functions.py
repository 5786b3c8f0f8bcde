"""Pipelines with functions that transform, filter and group elements."""
import tensorflow.compat.v1 as tf

from pipelines import Dataset, pipeline


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


def serialized_examples():
    made = []
    for n in range(7):
        example = tf.train.Example()
        example.features.feature["age"].float_list.value.append(n)
        example.features.feature["tags"].bytes_list.value.extend([b"t%d" % n] * (n % 3))
        example.features.feature["pair"].int64_list.value.extend([n, n + 1])
        made.append(example.SerializeToString())
    return Dataset.from_tensor_slices(made)


@pipeline
def examples_parsed():
    spec = {"age": tf.FixedLenFeature([], tf.float32, 0.0), "tags": tf.VarLenFeature(tf.string), "pair": tf.FixedLenFeature([2], tf.int64)}
    return serialized_examples().batch(3).apply(tf.data.experimental.parse_example_dataset(spec, num_parallel_calls=2))


@pipeline
def examples_parsed_to_ragged_features():
    spec = {"tags": tf.io.RaggedFeature(tf.string), "none": tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True), "pair": tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
    return serialized_examples().batch(3).apply(tf.data.experimental.parse_example_dataset(spec, num_parallel_calls=2))


@pipeline
def examples_without_a_required_feature():
    spec = {"age": tf.FixedLenFeature([2], tf.float32)}
    return serialized_examples().batch(3).apply(tf.data.experimental.parse_example_dataset(spec))
