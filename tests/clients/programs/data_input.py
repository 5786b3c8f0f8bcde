"""Input by tf.data: files of records, parsing, shuffling, batches; an iterator made anew for each epoch."""
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
        epoch = tf.placeholder(tf.int64, [])
        dataset = tf.data.TFRecordDataset(path).map(parse).shuffle(64, seed=5).batch(32).prefetch(2)
        dataset = dataset.concatenate(dataset.take(epoch))
        iterator = tf.data.make_initializable_iterator(dataset)
        images, labels = iterator.get_next()
        images.set_shape([None, 784])
    with tf.device(job.setter()):
        _, loss, _ = classifier(images, labels)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    losses, counts = [], []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        for number in range(3):
            session.run(iterator.initializer, {epoch: number})
            count = 0
            try:
                while True:
                    losses.append(session.run([loss, train])[0])
                    count += 1
            except tf.errors.OutOfRangeError as error:
                assert "End of sequence" in error.message, error.message
            counts.append(count)
    assert counts == [8, 9, 10], counts
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2, losses
    return {"loss": losses}
