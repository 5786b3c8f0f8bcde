"""Runs the scenarios of `owners/` on our servers and on TensorFlow's, and compares what sessions see of each other's objects.
Every op of our table (JSON, the first argument) that makes or names an object must be in a scenario."""
import argparse
import itertools
import json
import os
import re
import sys
import tempfile
import time

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import graph_pb2

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import owners  # noqa: E402
from owners import Builder, Naming  # noqa: E402
from owners.allowed import ALLOWED, EXCUSED, entry_for  # noqa: E402
from owners.scenarios import OUTLIVING, RESETTING, SCENARIOS  # noqa: E402

tf.disable_v2_behavior()

# Deadline of a step in milliseconds: a step that waits for an object of another session ends with an error.
STEP_MS = 20_000
# The version of a graph that may have every op of the table.
OLD_PRODUCER = 15
DEVICE = "/job:worker/task:0"
# The ways in which all objects of a graph are named.
NAMINGS = (Naming("", ""), Naming("shared", ""), Naming("", "kept"), Naming("shared", "kept"))


class Objects:
    """A graph with objects of many ops, named in one way."""

    def __init__(self, makers, naming, folder, run=""):
        self.makers, self.naming = makers, naming
        self.graph = tf.Graph()
        self.nodes = {}
        with self.graph.as_default(), tf.device(DEVICE):
            # The graph accepts ops that newer graphs must not have.
            versions = graph_pb2.GraphDef()
            versions.versions.producer = OLD_PRODUCER
            tf.import_graph_def(versions, name="")
            self.key, self.number = tf.placeholder(tf.string, [], "key"), tf.placeholder(tf.float32, [], "number")
            for maker in makers:
                node = f"{maker.label}_of_{naming.shared_name}_{naming.container}{run}"
                builder = Builder(maker.op, node, naming, self.key, self.number, folder, maker.label)
                self.nodes[maker.label] = maker.build(builder)


class Session:
    """A session of a scenario; `touch` and `look` record the results of all objects."""

    def __init__(self, scenario, master, isolate):
        self.scenario, self.name = scenario, "abcd"[scenario.opened]
        scenario.opened += 1
        config = tf.ConfigProto(isolate_session_state=isolate)
        # Optimizing such a graph takes TensorFlow seconds, and changes nothing that is compared.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self.session = tf.Session(scenario.targets[master], graph=scenario.objects.graph, config=config)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()

    def touch(self):
        self.run("touches", 0)

    def look(self):
        self.run("sees", 1)

    def extend(self):
        """Adds a node to the session's graph."""
        with self.session.graph.as_default(), tf.device(DEVICE):
            tf.no_op()

    def run(self, verb, which):
        objects = self.scenario.objects
        self.scenario.steps += 1
        nodes = {maker.label: objects.nodes[maker.label][which] for maker in objects.makers}
        parts = [{label: node} for label, node in nodes.items()]
        if not any(maker.alone for maker in objects.makers):
            results = self.step(nodes)
            parts = [] if isinstance(results, dict) else parts
        if parts:
            results = {}
            for part in parts:
                value = self.step(part)
                results |= value if isinstance(value, dict) else dict.fromkeys(part, value)
        for label, value in results.items():
            self.scenario.seen.setdefault(label, []).append(f"{self.name} {verb} {described(value)}")

    def step(self, nodes):
        """Returns the values by label, or the class of the error."""
        scenario = self.scenario
        feeds = {scenario.objects.key: f"key{scenario.steps}", scenario.objects.number: scenario.steps}
        try:
            return self.session.run(nodes, feeds, options=tf.RunOptions(timeout_in_ms=STEP_MS))
        except tf.errors.OpError as error:
            scenario.errors.append((list(nodes)[:3], re.sub(r"(?s)Graph execution error.*?Node: '\S+'\n", "", str(error.message))[:200]))
            return type(error).__name__


def described(value):
    if value is None or isinstance(value, str):
        return value or "ok"
    return str(np.asarray(value).tolist())


class Scenario:
    """A scenario on one pair of workers: opens sessions and collects what each sees, by the label of the object."""

    def __init__(self, targets, objects):
        self.targets, self.objects = targets, objects
        self.seen, self.errors, self.opened, self.steps = {}, [], 0, 0

    def open(self, master=0, isolate=False):
        return Session(self, master, isolate)

    def reset(self, master):
        """Removes the objects of the scenario's container."""
        tf.Session.reset(self.targets[master], [self.objects.naming.container] if self.objects.naming.container else None)


def makers_in(table):
    """Returns the ops of the table that make or name an object: those with a name among their attributes, and those with an
    output that refers to an object which no input refers to."""
    found = []
    for op, row in table.items():
        is_named = {"shared_name", "container"} & {attr["name"] for attr in row["attrs"]}
        is_resource = any(output.get("type") == "resource" for output in row["outputs"])
        is_reference = any(output["is_ref"] for output in row["outputs"]) and not any(input["is_ref"] for input in row["inputs"])
        if is_named or is_resource or is_reference:
            found.append(op)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("table")
    parser.add_argument("--target", action="append", required=True, help="the target of one of our workers; given twice")
    parser.add_argument("--peer", action="append", required=True, help="the target of one of TensorFlow's workers; given twice")
    parser.add_argument("--only", default="", help="a regular expression that objects must match")
    parser.add_argument("--scenario", default="", help="scenarios whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="prints times and errors")
    options = parser.parse_args()
    started = time.monotonic()
    table = json.load(open(options.table))
    have = {maker.op for maker in owners.MAKERS}
    wrong = [f"{op}: makes an object, and is in no scenario" for op in makers_in(table) if op not in have and op not in EXCUSED]
    wrong += [f"{op}: is excused, and is in a scenario" for op in have & set(EXCUSED)]
    makers = [maker for maker in owners.MAKERS if maker.op in table and re.search(options.only, maker.label)]
    with tempfile.TemporaryDirectory() as folder:
        write_files(folder)
        compare = Comparison(options, wrong)
        removable, others = ([m for m in makers if m.removable == is_removable] for is_removable in (True, False))
        for naming in NAMINGS:
            graphs = [Objects(group, naming, folder) for group in by_steps(removable)]
            for scenario in SCENARIOS:
                compare(scenario, naming, [graphs, graphs], is_empty=False)
        # No container may be reset from here on.
        for naming in (NAMINGS[0], NAMINGS[-1]):
            for number, scenario in enumerate(SCENARIOS):
                if scenario not in RESETTING:
                    unused = naming._replace(shared_name=naming.shared_name and f"{naming.shared_name}{number}")
                    sides = [[Objects(group, unused, folder, f"{number}{side}") for group in by_steps(others)] for side in "ab"]
                    compare(scenario, naming, sides, is_empty=True)
    if not (options.only or options.scenario):
        wrong += [f"allowed, but no longer needed: {entry.objects}" for entry in ALLOWED if entry not in compare.used]
    for text in wrong:
        print(text)
    print(f"{compare.count} comparisons of {len(makers)} objects in {time.monotonic() - started:.0f} s, {len(wrong)} differences")
    sys.exit(1 if wrong else 0)


def by_steps(makers):
    """Returns the objects that run together and those that run in steps of their own, each by whether they outlive their
    session."""
    groups = [
        [maker for maker in makers if (maker.alone, maker.outlives) == kind]
        for kind in itertools.product((False, True), repeat=2)
    ]
    return [group for group in groups if group]


class Comparison:
    """Runs scenarios on both sides, and collects the differences in `wrong`."""

    def __init__(self, options, wrong):
        self.options, self.wrong, self.count, self.used = options, wrong, 0, set()

    def __call__(self, scenario, naming, graphs_of_sides, is_empty):
        """Compares what each object's sessions see in a scenario. The containers are reset before unless they are empty."""
        if self.options.scenario not in scenario.__name__:
            return
        sides = zip((self.options.peer, self.options.target), graphs_of_sides)
        theirs, ours = (self.run(scenario, targets, graphs, is_empty) for targets, graphs in sides)
        for label in theirs:
            self.count += 1
            if ours[label] == theirs[label]:
                continue
            entry = entry_for(label, scenario.__name__)
            if entry:
                self.used.add(entry)
            else:
                way = f"shared_name '{naming.shared_name}', container '{naming.container}'"
                self.wrong.append(f"{label}, {way}, {scenario.__name__}: {'; '.join(ours[label])}\n    not {'; '.join(theirs[label])}")

    def run(self, scenario, targets, graphs, is_empty):
        """Runs a scenario with each graph. Returns what the sessions saw, by the label of the object."""
        seen = {}
        for objects in graphs:
            if scenario in OUTLIVING and not all(maker.outlives for maker in objects.makers):
                continue
            begun = time.monotonic()
            side = Scenario(targets, objects)
            if not is_empty:
                side.reset(0)
            scenario(side)
            seen |= side.seen
            if self.options.verbose:
                print(f"{scenario.__name__}, {objects.naming}, {targets[0]}: {time.monotonic() - begun:.1f} s", *side.errors[:9], sep="\n  ", flush=True)
        return seen


def write_files(folder):
    """Writes the files that readers read."""
    with open(os.path.join(folder, "lines"), "w") as lines:
        lines.write("1\n2\n3\n")
    with tf.io.TFRecordWriter(os.path.join(folder, "records")) as records:
        for i in range(3):
            records.write(str(i))


main()
