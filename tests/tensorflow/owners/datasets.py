"""Iterators, and the generators and caches that datasets share."""
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import function

from . import call, after, first, makes

ELEMENTS = {"output_types": [tf.int64], "output_shapes": [[]]}


def numbers():
    """Returns a dataset of 0 to 99."""
    return call("RangeDataset", start=tf.constant(0, tf.int64), stop=tf.constant(100, tf.int64), step=tf.constant(1, tf.int64), **ELEMENTS)


def next_of(iterator):
    return first(call("IteratorGetNext", iterator=iterator, **ELEMENTS))


def made(iterator, dataset):
    return call("MakeIterator", dataset=dataset, iterator=iterator)


@makes("Iterator", "IteratorV2", alone=True, removable=False)
def iterator(b):
    handle = b.make(**ELEMENTS)
    return made(handle, numbers()), next_of(handle)


@makes("OneShotIterator", alone=True, removable=False)
def one_shot(b):
    @function.Defun()
    def factory():
        return numbers()
    return tf.no_op(), next_of(b.make(dataset_factory=factory, **ELEMENTS))


@makes("AnonymousIterator", "AnonymousIteratorV2", "AnonymousIteratorV3", removable=False)
def anonymous_iterator(b):
    handle = b.make_unnamed(**ELEMENTS)
    return tf.no_op(), after(made(handle, numbers()), lambda: next_of(handle))


@makes("IteratorFromStringHandle", "IteratorFromStringHandleV2", alone=True, removable=False)
def iterator_of_a_string(b):
    own = call("IteratorV2", name=f"{b.node}_of", **b.names(), **ELEMENTS)
    text = call("IteratorToStringHandle", resource_handle=own)
    return made(own, numbers()), next_of(b.make_unnamed(string_handle=text, **ELEMENTS))


DEVICE = "/job:worker/replica:0/task:0/device:CPU:0"


def of_devices(handle, incarnation):
    return first(call("MultiDeviceIteratorGetNextFromShard", multi_device_iterator=handle, shard_num=0, incarnation_id=incarnation, **ELEMENTS))


def init_devices(handle):
    return call("MultiDeviceIteratorInit", dataset=numbers(), multi_device_iterator=handle, max_buffer_size=tf.constant(1, tf.int64))


@makes("MultiDeviceIterator", alone=True, removable=False)
def iterator_of_devices(b):
    handle = b.make(devices=[DEVICE], **ELEMENTS)
    # The incarnation counts the initialisations of the iterator.
    return tf.no_op(), init_devices(handle)


@makes("AnonymousMultiDeviceIterator", "AnonymousMultiDeviceIteratorV3", alone=True, removable=False)
def anonymous_iterator_of_devices(b):
    handle = b.make_unnamed(devices=[DEVICE], **ELEMENTS)
    return tf.no_op(), init_devices(handle)


@makes("MultiDeviceIteratorFromStringHandle", alone=True, removable=False)
def iterator_of_devices_of_a_string(b):
    own = call("MultiDeviceIterator", name=f"{b.node}_of", devices=[DEVICE], **b.names(), **ELEMENTS)
    text = call("MultiDeviceIteratorToStringHandle", multi_device_iterator=own)
    return tf.no_op(), init_devices(b.make_unnamed(string_handle=text, **ELEMENTS))


def first_of(dataset):
    handle = call("AnonymousIteratorV2", **ELEMENTS)[0]
    return after(made(handle, dataset), lambda: next_of(handle))


@makes("AnonymousMemoryCache", "DummyMemoryCache", removable=False)
def cache(b):
    dataset = call("CacheDatasetV2", input_dataset=numbers(), filename="", cache=b.make_unnamed(), **ELEMENTS)
    return tf.no_op(), first_of(dataset)


@makes("AnonymousSeedGenerator", "DummySeedGenerator", removable=False)
def seeds(b):
    seed = tf.constant(3, tf.int64)
    generator = b.make_unnamed(seed=seed, seed2=seed, reshuffle=True) if b.op.startswith("Anonymous") else b.make_unnamed()
    arguments = {"buffer_size": tf.constant(10, tf.int64), "seed": seed, "seed2": seed, "seed_generator": generator}
    return tf.no_op(), first_of(call("ShuffleDatasetV3", input_dataset=numbers(), **arguments, **ELEMENTS))


@makes("ThreadPoolHandle", "ExperimentalThreadPoolHandle", removable=False)
def thread_pool(b):
    pool = b.make(num_threads=1, display_name="pool")
    return tf.no_op(), first_of(call("ThreadPoolDataset", input_dataset=numbers(), thread_pool=pool, **ELEMENTS))


@makes("StatsAggregatorHandle", "ExperimentalStatsAggregatorHandle", removable=False)
def stats_aggregator(b):
    aggregator = b.make()
    recording = call("BytesProducedStatsDataset", input_dataset=numbers(), tag=b.key, **ELEMENTS)
    recording = call("SetStatsAggregatorDataset", input_dataset=recording, stats_aggregator=aggregator, tag="", counter_prefix="", **ELEMENTS)
    # Each step adds a histogram of the same size under the step's key.
    return first_of(recording), tf.strings.length(call("StatsAggregatorSummary", iterator=aggregator))
