"""Compare kernels with TensorFlow's, case by case and alternately: milliseconds, and how many times faster ours is.

    cargo bench -p anabranch-executor --bench kernels --no-run       # prints where the binary is
    python benches/peer/kernels/kernels.py --bench target/dist/deps/kernels-... [--threads 1 2] [pattern ...]

TensorFlow runs each case in a graph of several consecutive copies, so that the cost of the client and of a session's
start is negligible. Each side is a process for each number of threads, and runs for a tenth of a second at a time, so that
the machine's other load and its clock rate are the same for both. The ratio is the median over the turns; milliseconds are
those of the best turn.
"""
import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).parent

# Time in seconds for which a side runs in a turn, the same as in the bench.
TURN = 0.1

# Time limit in seconds for a side's answer, which includes the preparation of a case.
DEADLINE = 120


def operations(op, n):
    """Returns the number of multiplications and additions of a product or convolution."""
    if op == "MatMul":
        return 2 * n[0] * n[1] * n[2]
    if op.startswith("Conv2D"):
        batch, h, w, c, kh, kw, stride, outputs = n
        return 2 * batch * -(-h // stride) * -(-w // stride) * c * kh * kw * outputs
    return 0


def peer(threads):
    """Runs the cases that a `Side` sends on standard input, until the input ends."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    config = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    rng = np.random.default_rng(0)

    def noise(*dims):
        return tf.Variable(rng.random(dims, np.float32) + np.float32(0.5), use_resource=False)

    def build(op, n):
        """Returns a function that adds a copy of the case to the graph."""
        raw = tf.raw_ops
        if op == "MatMul":
            m, k, columns, flip_a, flip_b = n
            a, b = noise(*((k, m) if flip_a else (m, k))), noise(*((columns, k) if flip_b else (k, columns)))
            return lambda: tf.matmul(a, b, bool(flip_a), bool(flip_b))
        if op.startswith("Conv2D"):
            batch, h, w, c, kh, kw, stride, outputs = n
            x, f = (batch, h, w, c), (kh, kw, c, outputs)
            y = (batch, -(-h // stride), -(-w // stride), outputs)
            how = dict(strides=[1, stride, stride, 1], padding="SAME")
            if op == "Conv2D":
                vx, vf = noise(*x), noise(*f)
                return lambda: raw.Conv2D(input=vx, filter=vf, **how)
            vy = noise(*y)
            if op == "Conv2DBackpropInput":
                vf = noise(*f)
                return lambda: raw.Conv2DBackpropInput(input_sizes=x, filter=vf, out_backprop=vy, **how)
            vx = noise(*x)
            return lambda: raw.Conv2DBackpropFilter(input=vx, filter_sizes=f, out_backprop=vy, **how)
        if "Pool" in op:
            batch, h, w, c, size, stride = n
            how = dict(ksize=[1, size, size, 1], strides=[1, stride, stride, 1], padding="SAME")
            x = noise(batch, h, w, c)
            if op == "MaxPoolGrad":
                x = tf.constant(rng.random((batch, h, w, c), np.float32))
                y = tf.Variable(raw.MaxPool(input=x, **how), use_resource=False)
                dy = noise(*y.shape.as_list())
                return lambda: raw.MaxPoolGrad(orig_input=x, orig_output=y, grad=dy, **how)
            if op == "AvgPool":
                return lambda: raw.AvgPool(value=x, **how)
            return lambda: raw.MaxPool(input=x, **how)
        if op == "FusedBatchNormV3":
            x, channel = noise(*n), [noise(n[3]) for _ in range(2)]
            none = tf.constant([], tf.float32)
            return lambda: raw.FusedBatchNormV3(
                x=x, scale=channel[0], offset=channel[1], mean=none, variance=none, is_training=True
            )[0]
        if op == "FusedBatchNormGradV3":
            x, dy, c = noise(*n), noise(*n), [noise(n[3]) for _ in range(4)]
            return lambda: raw.FusedBatchNormGradV3(
                y_backprop=dy, x=x, scale=c[0], reserve_space_1=c[1], reserve_space_2=c[2], reserve_space_3=c[3]
            )[0]
        if op == "BiasAdd":
            x, b = noise(*n), noise(n[1])
            return lambda: raw.BiasAdd(value=x, bias=b)
        if op == "BiasAddGrad":
            x = noise(*n)
            return lambda: raw.BiasAddGrad(out_backprop=x)
        if op == "SparseSoftmaxCrossEntropyWithLogits":
            x, labels = noise(*n), tf.constant([i * 7 % n[1] for i in range(n[0])], tf.int32)
            return lambda: raw.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=labels)[0]
        if op == "Softmax":
            x = noise(*n)
            return lambda: raw.Softmax(logits=x)
        if len(n) == 3:
            x, axis = noise(n[0], n[1]), tf.constant([n[2]])
            return lambda: getattr(raw, op)(input=x, axis=axis)
        x, y = noise(*n), noise(*n)
        if op in ("AddV2", "Mul"):
            return lambda: getattr(raw, op)(x=x, y=y)
        if op == "ReluGrad":
            return lambda: raw.ReluGrad(gradients=x, features=y)
        if op == "Relu":
            return lambda: raw.Relu(features=x)
        return lambda: getattr(raw, op)(x=x)

    def prepare(line):
        """Returns the session of a case, and a function that runs the case and returns the seconds of one copy."""
        op, *n = line.split()
        with tf.Graph().as_default():
            copy = build(op, [int(v) for v in n])
            one = last = copy().op
            s = tf.Session(config=config)
            s.run(tf.global_variables_initializer())
            s.run(one)
            started = time.perf_counter()
            s.run(one)
            copies = int(min(50, max(1, 0.02 // (time.perf_counter() - started))))
            for _ in range(copies - 1):
                with tf.control_dependencies([last]):
                    last = copy().op
            step = s.make_callable(last)

        def run():
            started = time.perf_counter()
            step()
            return (time.perf_counter() - started) / copies

        run(), run()
        return s, run

    session = None
    for line in sys.stdin:
        if line.strip():
            if session:
                session.close()
            session, run = prepare(line)
        times, end = [], time.perf_counter() + TURN
        while time.perf_counter() < end or len(times) < 3:
            times.append(run())
        print(f"RESULT {np.median(times)}", flush=True)


class Side:
    """A process that prepares the case in a line of its input, and runs the case for one turn for each empty line."""

    def __init__(self, command, **how):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **how)
        self.case = ""

    def turn(self, line=""):
        """Runs one turn, and returns the median seconds of its runs."""
        self.case = line or self.case
        # Killing the process ends its output, and so the loop below.
        alarm = threading.Timer(DEADLINE, self.process.kill)
        alarm.start()
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            for answer in self.process.stdout:
                if answer.startswith("RESULT "):
                    return float(answer[7:])
        except BrokenPipeError:
            pass
        finally:
            alarm.cancel()
        sys.exit(f"{' '.join(self.process.args)} ended at {self.case}, or gave no answer in {DEADLINE} s")

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="the bench's binary, which is needed")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("patterns", nargs="*", help="only cases in which one of these is found")
    a = parser.parse_args()
    if a.peer:
        return peer(a.peer)
    if not a.bench:
        parser.error("--bench is needed")
    lines = [line for line in (HERE / "cases.txt").read_text().splitlines() if line and line[0] != "#"]
    lines = [line for line in lines if not a.patterns or any(re.search(p, line) for p in a.patterns)]
    print(f"{'case':50} {'threads':>7} {'TensorFlow ms':>14} {'ours ms':>9} {'GFLOP/s':>8} {'ratio':>6}")
    for threads in a.threads:
        # TensorFlow logs much that is not an error.
        theirs = Side([sys.executable, __file__, "--peer", str(threads)], stderr=subprocess.DEVNULL)
        sides = [theirs, Side([a.bench, "--answer", str(threads)])]
        for line in lines:
            for side in sides:
                side.turn(line)
            turns = [[side.turn() for side in sides] for _ in range(a.turns)]
            theirs, mine = (min(side) for side in zip(*turns))
            ratio = statistics.median(theirs / mine for theirs, mine in turns)
            op, *n = line.split()
            rate = operations(op, [int(v) for v in n]) / mine / 1e9
            rate = f"{rate:8.0f}" if rate else " " * 8
            print(f"{line:50} {threads:7} {theirs * 1e3:14.3f} {mine * 1e3:9.3f} {rate} {ratio:6.2f}", flush=True)
        for side in sides:
            side.end()


if __name__ == "__main__":
    main()
