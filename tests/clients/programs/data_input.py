"""Input by tf.data: record files, parsing, shuffling, batches; the iterator is initialised again for each epoch."""
import os

import numpy as np
import tensorflow.compat.v1 as tf

from job import classifier, digits


def run(job):
    path = os.path.join(job.scratch, "digits.tfrecord")
    x, y = digits(256)
    with tf.python_io.TFRecordWriter(path) as writer:
        for image, label in zip(x, y):
            features = {
                "image": tf.train.Feature(float_list=tf.train.FloatList(value=image)),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

    def parse(record):
        form = {"image": tf.FixedLenFeature([784], tf.float32), "label": tf.FixedLenFeature([], tf.int64)}
        example = tf.parse_single_example(record, form)
        return example["image"], example["label"]

    with tf.device("/job:worker/task:0"):
        count = tf.placeholder(tf.int64, [])
        dataset = tf.data.TFRecordDataset(path).take(count).map(parse).shuffle(64, seed=5).batch(32).prefetch(2)
        iterator = tf.data.make_initializable_iterator(dataset)
        images, labels = iterator.get_next()
        images.set_shape([None, 784])
    with tf.device(job.setter()):
        _, loss, _ = classifier(images, labels)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    losses, counts, seen = [], [], []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        for batches in (8, 6, 7):
            session.run(iterator.initializer, {count: batches * 32})
            taken = 0
            try:
                while True:
                    value, batch_labels, _ = session.run([loss, labels, train])
                    losses.append(value)
                    seen.extend(batch_labels.tolist())
                    taken += 1
            except tf.errors.OutOfRangeError as error:
                assert "End of sequence" in error.message, error.message
            counts.append(taken)
    assert counts == [8, 6, 7], counts
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2, losses
    return {"loss": losses, "labels": seen}
