"""Pipelines that read SQLite databases."""
import os
import sqlite3
import tempfile

import tensorflow.compat.v1 as tf
from tensorflow.python.data.experimental.ops import readers

from pipelines import pipeline

FOLDER = tempfile.mkdtemp()
ROWS = (
    (1, 1.5, "a", b"\x00\xff", None), (-300, 2.75, "12abc", b"xyz", 5), (2**40, -1e300, "é", b"", 7), (0, 3.99, "3.99", b"9", 0),
    (-(2**63), 0.1, " -7.5e2x", b"-1", 1), (2**63 - 1, 1e15, "", b"1e3", 2),
)
NUMBERS = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.bool, tf.float64)


def database():
    """Returns the path of a database with a table of every storage class, and one with 200 rows."""
    path = os.path.join(FOLDER, "rows.db")
    if not os.path.exists(path):
        with sqlite3.connect(path) as connection:
            connection.execute("create table t(i integer, f real, s text, b blob, n integer)")
            connection.executemany("insert into t values(?, ?, ?, ?, ?)", ROWS)
            connection.execute("create table many(i integer)")
            connection.executemany("insert into many values(?)", [(i,) for i in range(200)])
        connection.close()
    return path


def rows(query, types, path=None):
    return readers.SqlDatasetV2("sqlite", path or database(), query, types)


@pipeline
def rows_of_a_database():
    return rows("select i, f, s, b, n from t order by i", (tf.int64, tf.float64, tf.string, tf.string, tf.int64))


@pipeline
def columns_as_strings():
    return rows("select i, f, s, b, n from t order by rowid", (tf.string,) * 5)


@pipeline
def integers_as_numbers():
    return rows(f"select {', '.join(['i'] * 8)} from t", NUMBERS)


@pipeline
def reals_as_numbers():
    return rows(f"select {', '.join(['f'] * 8)} from t", NUMBERS)


@pipeline
def texts_as_numbers():
    return rows(f"select {', '.join(['s'] * 8)} from t", NUMBERS)


@pipeline
def blobs_as_numbers():
    return rows(f"select {', '.join(['b'] * 8)} from t", NUMBERS)


@pipeline
def rows_that_are_computed():
    return rows("select count(*), max(f) * 2, null, 'x', x'00ff' from t", (tf.int64, tf.float64, tf.string, tf.string, tf.string))


@pipeline
def rows_of_the_first_statement():
    return rows("select i from t; select f from t", (tf.int64,))


@pipeline
def no_rows():
    return rows("select i from t where i = 17", (tf.int32,))


@pipeline
def more_rows_than_are_read_ahead():
    return rows("select i from many", (tf.int32,)).filter(lambda i: tf.equal(i % 5, 0)).skip(10)


@pipeline
def statement_without_rows():
    return rows("insert into t values(9, 9, 9, 9, 9)", (tf.int64,))


@pipeline
def too_few_columns():
    return rows("select i from t", (tf.int64, tf.int64))


@pipeline
def column_that_does_not_exist():
    return rows("select nothing from t", (tf.int64,))


@pipeline
def empty_query():
    return rows("", (tf.int64,))


@pipeline
def file_that_is_no_database():
    path = os.path.join(FOLDER, "no.db")
    with open(path, "wb") as file:
        file.write(b"hello" * 1000)
    return rows("select i from t", (tf.int64,), path)
