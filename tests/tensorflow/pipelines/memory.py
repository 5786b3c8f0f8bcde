"""Pipelines over tensors and ranges, without functions."""
import numpy as np
import tensorflow.compat.v1 as tf

from pipelines import Dataset, pipeline


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
