"""One task of TensorFlow's own server, as the peer that ours are compared with."""
import argparse
import json

import tensorflow.compat.v1 as tf

parser = argparse.ArgumentParser()
parser.add_argument("--cluster", type=json.loads, required=True)
parser.add_argument("--job", required=True)
parser.add_argument("--task", type=int, required=True)
flags = parser.parse_args()
tf.train.Server(flags.cluster, job_name=flags.job, task_index=flags.task).join()
