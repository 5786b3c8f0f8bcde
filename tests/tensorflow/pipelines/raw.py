"""Pipelines of datasets for which `tf.data` has no function of TensorFlow 1, made by their ops."""
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.data.ops.dataset_ops import _VariantDataset
from tensorflow.python.framework import function

from pipelines import Dataset, pipeline
from pipelines.files import lines

raw = tf.raw_ops
NUMBER = {"output_types": [tf.int64], "output_shapes": [[]]}


def of_variant(variant, spec=tf.TensorSpec([], tf.int64)):
    """Returns the dataset in a variant tensor."""
    return _VariantDataset(variant, spec)


def v(dataset):
    return dataset._variant_tensor


def i64(value):
    return tf.constant(value, tf.int64)


def filled():
    """Returns vectors of 0 to 3 numbers."""
    return Dataset.range(7).map(lambda i: tf.fill([tf.cast(i % 4, tf.int32)], i))


@pipeline
def sparse_batches():
    return filled().apply(tf.data.experimental.dense_to_sparse_batch(3, [9]))


@pipeline
def sparse_batches_of_the_largest_row():
    return filled().apply(tf.data.experimental.dense_to_sparse_batch(3, [None]))


@pipeline
def sparse_batches_of_rows_that_are_too_large():
    return filled().apply(tf.data.experimental.dense_to_sparse_batch(3, [2]))


@pipeline
def sparse_batches_of_another_rank():
    variant = raw.ExperimentalDenseToSparseBatchDataset(input_dataset=v(filled()), batch_size=i64(2), row_shape=i64([2, 2]), output_types=[tf.variant], output_shapes=[None])
    return of_variant(variant, tf.SparseTensorSpec([None, 2, 2], tf.int64))


@pipeline
def sparse_batches_of_matrices_of_strings():
    rows = np.array([[["a", ""], ["b", "c"]], [["d", "e"], ["f", "g"]], [["h", "i"], ["j", "k"]]])
    return Dataset.from_tensor_slices(rows).apply(tf.data.experimental.dense_to_sparse_batch(2, [3, None]))


@pipeline
def delayed():
    variant = raw.SleepDataset(input_dataset=v(Dataset.range(4)), sleep_microseconds=i64(500), **NUMBER)
    return of_variant(raw.ExperimentalSleepDataset(input_dataset=variant, sleep_microseconds=i64(0), **NUMBER))


@pipeline
def the_fastest_of_two():
    variants = [v(Dataset.range(9)), v(Dataset.range(9).map(lambda i: i + 0))]
    first = raw.ChooseFastestDataset(input_datasets=variants, num_experiments=3, **NUMBER)
    second = raw.ExperimentalChooseFastestDataset(input_datasets=variants, num_experiments=20, **NUMBER)
    return Dataset.zip((of_variant(first), of_variant(second)))


@pipeline
def the_fastest_branch():
    @function.Defun(tf.variant)
    def skipped(dataset):
        return raw.SkipDataset(input_dataset=dataset, count=i64(0), **NUMBER)

    @function.Defun(tf.variant, tf.int64)
    def taken(dataset, count):
        return raw.TakeDataset(input_dataset=dataset, count=count, **NUMBER)

    variant = raw.ChooseFastestBranchDataset(
        input_dataset=v(Dataset.range(12)), ratio_numerator=i64(1), ratio_denominator=i64(1), other_arguments=[i64(-1)],
        num_elements_per_branch=2, branches=[skipped, taken], other_arguments_lengths=[0, 1], **NUMBER)
    return of_variant(variant)


@pipeline
def sampled_at_random():
    variant = raw.SamplingDataset(input_dataset=v(Dataset.range(60)), rate=tf.constant(0.4), seed=i64(3), seed2=i64(8), **NUMBER)
    return of_variant(variant).repeat(2)


@pipeline
def weighted():
    inputs = [v(Dataset.range(n, n + 40)) for n in (0, 100, 200)]
    weights = [tf.constant(w, tf.float64) for w in (0.2, 0.3, 0.5)]
    return of_variant(raw.WeightedFlatMapDataset(input_datasets=inputs, weights=weights, **NUMBER))


@pipeline
def flattened_by_index():
    @function.Defun(tf.int64)
    def mapped(i):
        return tf.stack([i * 10, i * 10 + 1, i * 10 + 2])

    @function.Defun(tf.int64, tf.int64)
    def place(i, width):
        return i // width, i % width

    variant = raw.IndexFlatMapDataset(
        input_dataset=v(Dataset.range(5)), map_func_other_args=[], index_map_func_other_args=[i64(3)],
        output_cardinality=i64(15), map_func=mapped, index_map_func=place, **NUMBER)
    return of_variant(variant)


STRING = tf.TensorSpec([], tf.string)


@pipeline
def files_by_patterns():
    folder = os.path.dirname(lines("listed.txt", b""))
    os.makedirs(os.path.join(folder, "nested.txt", "more"), exist_ok=True)
    lines(os.path.join("nested.txt", "inner.txt"), b"")
    lines(os.path.join("nested.txt", "more", "inmost.txt"), b"")
    patterns = ["listed*", "*.nothing", "nested.txt/*", "n*/m*/?nmost.txt", "liste?.txt"]
    return of_variant(raw.MatchingFilesDataset(patterns=[os.path.join(folder, p) for p in patterns]), STRING)


@pipeline
def files_of_no_pattern():
    return of_variant(raw.ExperimentalMatchingFilesDataset(patterns=[os.path.join(tempfile.gettempdir(), "no-such-*")]), STRING)


@pipeline
def files_in_no_folder():
    return of_variant(raw.MatchingFilesDataset(patterns="/no/such/folder/*"), STRING)


@pipeline
def chosen_without_stopping():
    inputs = [v(Dataset.range(3)), v(Dataset.range(10, 16))]
    variant = raw.ExperimentalDirectedInterleaveDataset(selector_input_dataset=v(Dataset.range(2).repeat()), data_input_datasets=inputs, **NUMBER)
    return of_variant(variant)


@pipeline
def cached_in_files():
    path = os.path.join(tempfile.mkdtemp(), "cache")
    return Dataset.range(12).map(lambda i: (i, tf.as_string(i), tf.fill([2, 2], 0.5))).shuffle(5, seed=3).cache(path).repeat(3)


@pipeline
def nothing_cached_in_files():
    return Dataset.range(0).cache(os.path.join(tempfile.mkdtemp(), "cache")).repeat(2)


@pipeline
def cached_in_files_of_no_folder():
    return Dataset.range(3).cache("/no/such/folder/cache")
