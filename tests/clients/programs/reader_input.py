"""Input by readers: queue runners read record and text files; a model trains on the parsed records until they end."""
import os

import numpy as np
import tensorflow.compat.v1 as tf

from job import classifier, digits

FILES, EACH, EPOCHS = 4, 60, 2


def run(job):
    x, y = digits(FILES * EACH)
    packed, texts = [], []
    for part in range(FILES):
        here = slice(part * EACH, (part + 1) * EACH)
        packed.append(os.path.join(job.scratch, f"part-{part}.tfrecord"))
        options = tf.python_io.TFRecordOptions(tf.python_io.TFRecordCompressionType.GZIP)
        with tf.python_io.TFRecordWriter(packed[-1], options) as writer:
            for image, label in zip(x[here], y[here]):
                features = {
                    "image": tf.train.Feature(float_list=tf.train.FloatList(value=image)),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
        texts.append(os.path.join(job.scratch, f"part-{part}.csv"))
        with open(texts[-1], "w") as out:
            out.write("label,place\r\n" + "".join(f"{label},{i}\r\n" for i, label in enumerate(y[here])))
    with tf.device("/job:worker/task:1"):
        names = tf.train.string_input_producer(packed, num_epochs=EPOCHS, shuffle=True, seed=4)
        reader = tf.TFRecordReader(options=options)
        _, records = reader.read_up_to(names, 16)
        form = {"image": tf.FixedLenFeature([784], tf.float32), "label": tf.FixedLenFeature([], tf.int64)}
        examples = tf.parse_example(records, form)
        parts = [examples["image"], examples["label"]]
        images, labels = tf.train.shuffle_batch(parts, 24, 120, 48, num_threads=2, seed=5, enqueue_many=True)
        lines = tf.TextLineReader(skip_header_lines=1)
        key, line = lines.read(tf.train.string_input_producer(texts, num_epochs=1, shuffle=False))
        label, place = tf.decode_csv(line, [[0], [0]])
        rows = tf.train.batch([key, label, place], batch_size=50, num_threads=1, allow_smaller_final_batch=True)
        counts = [r.num_records_produced() for r in (reader, lines)]
    with tf.device(job.setter()):
        _, loss, _ = classifier(images, labels)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    losses, seen, read = [], [], []
    with tf.Session(job.target) as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        for fetches, keep in (([loss, labels, train], lambda v: (losses.append(v[0]), seen.append(v[1]))), (rows, read.append)):
            try:
                while not coordinator.should_stop():
                    keep(session.run(fetches))
            except tf.errors.OutOfRangeError as error:
                assert "is closed and has insufficient elements" in error.message, error.message
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=20)
        produced = session.run(counts)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2, losses
    assert len(seen) == FILES * EACH * EPOCHS // 24, len(seen)
    keys, labels, places = (np.concatenate(column) for column in zip(*read))
    assert (labels == y).all()
    keys = [os.path.basename(key.decode()) for key in keys]
    # Without the order of the records, which is not deterministic because several threads enqueue.
    return {"keys": keys, "labels": labels, "places": places, "produced": produced, "classes": np.unique(np.concatenate(seen))}
