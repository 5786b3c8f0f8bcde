"""Tracing: the timeline of a step over three tasks has all ops and transfers."""
import json
import re

import tensorflow.compat.v1 as tf
from tensorflow.python.client import timeline


def ops(step_stats):
    """The traced ops as text: device, node and output shapes. Without transfers, because TensorFlow's servers record only
    received tensors, and not always; and without the source nodes of partitions."""
    traced = []
    for device in step_stats.dev_stats:
        for node in device.node_stats:
            shapes = [[d.size for d in output.tensor_description.shape.dim] for output in node.output]
            if not re.search("RecvTensor| = (_Send|_Recv|NoOp)[(]", node.node_name + node.timeline_label):
                traced.append(f"{device.device} {node.node_name} {node.timeline_label} {shapes}")
    return sorted(traced)


def nodes(graphs):
    """The nodes of partitions as text, without the numbers in the names of transfers."""
    return sorted(f"{node.device} {node.op} {re.sub('_S[0-9]+$', '', node.name)}" for g in graphs for node in g.node)


def run(job):
    with tf.device("/job:ps/task:0"):
        w = tf.get_variable("w", [64, 64], initializer=tf.ones_initializer())
    with tf.device("/job:worker/task:0"):
        left = tf.matmul(w, w, name="left")
    with tf.device("/job:worker/task:1"):
        right = tf.add(left, 1.0, name="right")
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
    with tf.Session(job.target) as session:
        session.run(w.initializer)
        metadata = tf.RunMetadata()
        session.run(right, options=options, run_metadata=metadata)
        trace = json.loads(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format(show_memory=True))
        names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
        devices = {d.device for d in metadata.step_stats.dev_stats}
        assert {"left", "right", "RecvTensor"} <= names, names
        for task in ("/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"):
            assert any(task in device for device in devices), devices
        assert len(metadata.partition_graphs) >= 3, len(metadata.partition_graphs)
        plain = tf.RunMetadata()
        session.run(right, run_metadata=plain)
        assert not plain.step_stats.dev_stats
        return {"ops": ops(metadata.step_stats), "nodes": nodes(metadata.partition_graphs), "devices": sorted(devices)}
