"""A traced step, whose timeline has the ops of each task."""
import json

import tensorflow.compat.v1 as tf
from tensorflow.python.client import timeline

from mixtures import PS, WORKERS


def build():
    with tf.device(WORKERS[0]):
        values = [tf.placeholder(tf.float32, [8, 8])]
    for i, task in enumerate([*PS, *WORKERS]):
        with tf.device(task):
            values.append(tf.matmul(values[-1], values[-1], name=f"product_{i}"))

    def run(session, _):
        metadata = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        last = session.run(values[-1], {values[0]: [[0.5] * 8] * 8}, options, metadata)
        trace = json.loads(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format())["traceEvents"]
        devices = {event["pid"]: event["args"]["name"] for event in trace if event["ph"] == "M"}
        products = [event for event in trace if event["ph"] == "X" and event["args"]["op"] == "MatMul"]
        return [last, *sorted(f"{devices[event['pid']]}: {event['args']['name']}" for event in products)]

    return run
