"""Pipelines that read truncated or damaged compressed files: the elements before the error, and the error."""
import gzip
import zlib

import numpy as np
import tensorflow.compat.v1 as tf

from pipelines import pipeline
from pipelines.files import lines, written


def cut_off(name, packed):
    """Writes the first half of a file."""
    return lines(name, packed[: len(packed) // 2])


NOISE = np.random.RandomState(3).choice(list(b"abcdefghijklmnopqrstuvwxyz0123456789\n"), 1500).astype(np.uint8).tobytes()


@pipeline
def compressed_blocks_cut_off():
    return tf.data.FixedLengthRecordDataset(cut_off("blocks.gz", gzip.compress(NOISE)), 23, compression_type="GZIP")


@pipeline
def compressed_lines_cut_off():
    return tf.data.TextLineDataset(cut_off("lines.zlib", zlib.compress(NOISE)), "ZLIB")


def damaged(name, compression, count, change):
    """A dataset of a compressed record file whose bytes `change` has modified. The number of records before the error
    depends on the size of the blocks that are decompressed at once."""
    noise = np.random.RandomState(5)
    whole = written(f"whole-{name}", [noise.bytes(500) for _ in range(count)], compression)
    with open(whole, "rb") as file:
        return tf.data.TFRecordDataset(lines(name, bytes(change(bytearray(file.read())))), compression)


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
    parts = [NOISE[i : i + 70] for i in range(0, len(NOISE), 70)]
    with open(written("records.zlib", parts, "ZLIB"), "rb") as file:
        return tf.data.TFRecordDataset(cut_off("cut.zlib", file.read()), "ZLIB")
