"""Pipelines that read files of lines, records and fixed-length blocks."""
import os
import tempfile

import tensorflow.compat.v1 as tf

from pipelines import Dataset, pipeline

FILES = tempfile.mkdtemp()


def lines(name, text):
    path = os.path.join(FILES, name)
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(text)
    return path


def written(name, messages, compression=""):
    """Writes a record file and returns its path."""
    path = os.path.join(FILES, name)
    if not os.path.exists(path):
        with tf.io.TFRecordWriter(path, compression) as writer:
            for message in messages:
                writer.write(message)
    return path


@pipeline
def text_lines():
    paths = [lines("a.txt", b"one\ntwo\r\n\nthree"), lines("b.txt", b""), lines("c.txt", b"four\n")]
    return tf.data.TextLineDataset(paths).skip(1)


@pipeline
def records():
    path = written("records", [b"x" * i for i in range(5)])
    return tf.data.TFRecordDataset([path, path])


@pipeline
def compressed_records():
    return tf.data.TFRecordDataset(written("zipped", [b"y" * i for i in range(5)], "GZIP"), "GZIP")


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


@pipeline
def blocks_of_a_file_whose_footer_is_cut_off():
    return tf.data.FixedLengthRecordDataset(lines("d.txt", b"ab"), 4, header_bytes=2, footer_bytes=1)


@pipeline
def lines_of_interleaved_files():
    paths = [lines("a.txt", b"one\ntwo\r\n\nthree"), lines("c.txt", b"four\n")]
    return Dataset.from_tensor_slices(paths).interleave(tf.data.TextLineDataset, cycle_length=2)


@pipeline
def parsed_records():

    def example(i):
        feature = {"i": tf.train.Feature(int64_list=tf.train.Int64List(value=[i, i * i]))}
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    dataset = tf.data.TFRecordDataset(written("examples", map(example, range(5)))).shuffle(10, seed=1).repeat(2).batch(3)
    return dataset.map(lambda s: tf.io.parse_example(s, {"i": tf.io.FixedLenFeature([2], tf.int64)})["i"])
