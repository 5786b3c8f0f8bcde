"""Pipelines that read files of comma-separated values."""
import tensorflow.compat.v1 as tf

from pipelines import pipeline
from pipelines.files import lines

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
