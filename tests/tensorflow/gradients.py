"""Compares our gradients of single ops with `tf.gradients`. Each graph of a manifest (the argument) holds our gradient
nodes; the script adds TensorFlow's gradients for the same ys, xs and weights, and runs both with TensorFlow's kernels."""
import json
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from probe import config  # noqa: E402

tf.disable_v2_behavior()


def check(entry):
    """Returns the first difference as text, None if there is none, or `no rule` if TensorFlow has no gradient."""
    with tf.Graph().as_default() as graph:
        definition = tf.GraphDef.FromString(open(entry["graph"], "rb").read())
        tf.import_graph_def(definition, name="")
        tensors = lambda names: [graph.get_tensor_by_name(n) for n in names]
        feeds = {
            f["name"]: np.array(f["values"], tf.as_dtype(f["dtype"]).as_numpy_dtype).reshape(f["shape"]) for f in entry["feeds"]
        }
        ys, xs = tensors(entry["ys"]), tensors(entry["xs"])
        with tf.Session(config=config()) as session:
            mine = [None if g is None else session.run(g, feeds) for g in entry["gradients"]]
            try:
                theirs = tf.gradients(ys, xs, tensors(entry["weights"]))
            except LookupError:
                return "no rule"
            for i, (own, other) in enumerate(zip(mine, theirs, strict=True)):
                zeros = np.zeros(feeds[entry["xs"][i]].shape)
                own = zeros if own is None else own
                value = zeros if other is None else session.run(tf.convert_to_tensor(other), feeds)
                if own.shape != value.shape:
                    return f"gradient {i} has shape {own.shape}, not {value.shape}"
                if not np.allclose(own, value, rtol=1e-9, atol=1e-9):
                    return f"gradient {i} is {own.tolist()}, not {value.tolist()}"
    return None


def main():
    entries = json.load(open(sys.argv[1]))
    wrong, without = 0, set()
    for entry in entries:
        try:
            difference = check(entry)
        except (ValueError, tf.errors.OpError) as error:
            difference = f"{type(error).__name__}: {str(error)[:400]}"
        if difference == "no rule":
            without.add(entry["op"])
        elif difference:
            wrong += 1
            print(f"{entry['op']}: {difference}")
    print("TensorFlow has no rule for", " ".join(sorted(without)))
    print(f"{len(entries)} graphs compared, {wrong} differences")
    sys.exit(1 if wrong else 0)


main()
