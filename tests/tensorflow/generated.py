"""Runs generated calls of every op of our table (JSON, the first argument) on our server (`--server`, its program) and on
TensorFlow: the valid calls of `cases`, each changed once or twice (see `mutations.py`). Both must return equal values, or
fail with the same class of error; neither may crash or hang. `allowed.py` lists the permitted differences."""
import argparse
import copy
import functools
import json
import os
import random
import re
import sys
import time

from tensorflow.python.framework import op_def_registry

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases  # noqa: E402
import cases.special  # noqa: E402
from allowed import ALLOWED, entry_for  # noqa: E402
from differential import combinations, context_of, different, is_called  # noqa: E402
from mutations import TooLarge, empties, mutations  # noqa: E402
from probe import Probe  # noqa: E402
from sides import DIED, HUNG, Failure, Server, Side, limit_memory, run_both  # noqa: E402

# Number of cases that are run by one pair of processes.
CHUNK = 500
# Number of calls of each op whose inputs are emptied.
EMPTIED_CALLS = 2
RUN = f"generated{os.getpid()}"


@functools.lru_cache(maxsize=64)
def calls_of(op, types):
    label, context = context_of(op, dict(types))
    return label, list(cases.GENERATORS[op](context))


class Case:
    """A changed call of an op with types. `static`: shapes and parameters are known when the graph is built."""

    def __init__(self, op, types, label, call, changes, static):
        self.op, self.types, self.call, self.static = op, types, call, static
        self.label = f"{label} ({', '.join(changes) or 'as it is'}{'; static' if static else ''})"

    def probe(self, number):
        return Probe(number, self.op, self.label).call(dict(self.types), self.call, RUN, self.static)

    def described(self):
        flat = [v for value in self.call.inputs for v in (value if isinstance(value, list) else [value])]
        return f"{self.label} {' '.join(str(list(getattr(v, 'shape', []))) for v in flat)} {self.call.attrs or ''}"


def cases_of(op, count, seed):
    """Yields up to `count` cases of an op; the same cases for the same seed."""
    definition = op_def_registry.get(op)
    kinds = [tuple(types.items()) for types in combinations(op, definition)]
    chance = random.Random(f"{seed} {op}")
    for _ in range(count if kinds else 0):
        types = chance.choice(kinds)
        label, calls = calls_of(op, types)
        if not calls:
            continue
        call, changes = chance.choice(calls), []
        for _ in range(chance.choice((1, 1, 1, 2))):
            possible = mutations(call, definition)
            if not possible:
                break
            description, change = chance.choice(possible)
            try:
                call = change(call)
            except TooLarge:
                continue
            changes.append(description)
        if changes and call.exact:
            # Only with the original values are the sums exact in any order.
            call = copy.copy(call)
            call.exact = False
        yield Case(op, types, label, call, changes, chance.random() < 0.15)


def empty_cases_of(op):
    """Yields the first calls of an op with every input emptied in turn."""
    definition = op_def_registry.get(op)
    for types in [tuple(types.items()) for types in combinations(op, definition)][:1]:
        label, calls = calls_of(op, types)
        for call in calls[:EMPTIED_CALLS]:
            for description, change in empties(call, definition):
                changed = copy.copy(change(call))
                changed.exact = False
                yield Case(op, types, label, changed, [description], False)


def difference(case, ours, theirs):
    """Returns the first difference as text, or None."""
    for side, name in ((ours, "ours"), (theirs, "the peer")):
        if isinstance(side, Failure) and side.kind in (DIED, HUNG):
            return f"{name}: {side.kind}"
    if isinstance(ours, Failure) or isinstance(theirs, Failure):
        kinds = [side.kind if isinstance(side, Failure) else None for side in (ours, theirs)]
        if kinds[0] == kinds[1]:
            return None
        texts = [f"{side.kind}: {side.message}" if isinstance(side, Failure) else "no error" for side in (ours, theirs)]
        return f"{texts[0]}, not {texts[1]}"
    for step, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for kind, a, b in (("output", mine[0], other[0]), ("variable", mine[1], other[1])):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                differing = different(x, y, case.call)
                if differing:
                    return f"{kind} {i} of step {step}: {differing}"
    return None


def run(chosen, first, server):
    """Runs cases on both sides. Returns pairs of a case and its difference, and the number of calls that fail in
    TensorFlow."""
    probes = [case.probe(first + at) for at, case in enumerate(chosen)]
    ours, theirs = run_both([Side(probes, server), Side(probes)])
    found = [(case, difference(case, *results)) for case, *results in zip(chosen, ours, theirs, strict=True)]
    failures = sum(isinstance(result, Failure) for result in theirs)
    return [(case, text) for case, text in found if text], failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("table")
    parser.add_argument("--server", required=True)
    parser.add_argument("--seed", default=os.environ.get("ANABRANCH_CASES_SEED", "1"))
    parser.add_argument("--count", type=int, default=int(os.environ.get("ANABRANCH_CASES_COUNT", "4")), help="cases of each op")
    parser.add_argument("--empty", action="store_true", help="also empties each input of the first calls of each op")
    parser.add_argument("--only", default="", help="a regular expression that ops must match")
    parser.add_argument("--log", default=os.devnull, help="the file for the server's log")
    options = parser.parse_args()
    started = time.time()
    limit_memory()
    table = json.load(open(options.table))
    ops = [op for op in sorted(table) if is_called(op) and op in cases.GENERATORS and re.search(options.only, op)]
    witnesses = [Case(e.op, tuple(e.types.items()), e.op, e.call, [], False) for e in ALLOWED if e.call and re.search(options.only, e.op)]
    made = [*witnesses, *(case for op in ops for case in cases_of(op, options.count, options.seed))]
    made += [case for op in ops for case in empty_cases_of(op)] if options.empty else []
    print(f"{len(made)} cases of {len(ops)} ops made in {time.time() - started:.0f} s", flush=True)
    used, wrong, peers_faults, failures = set(), 0, 0, 0
    server = Server(options.server, open(options.log, "ab"))
    try:
        for first in range(0, len(made), CHUNK):
            found, failed = run(made[first : first + CHUNK], first, server)
            failures += failed
            for case, text in found:
                if text.startswith("the peer:"):
                    peers_faults += 1
                    print(f"skipped: {case.described()}: {text}", flush=True)
                    continue
                entry = entry_for(case.op, text, None if case in witnesses else case.label)
                if entry is None:
                    wrong += 1
                    print(f"{case.described()}: {text}", flush=True)
                elif case in witnesses:
                    used.add(ALLOWED.index(entry))
    finally:
        server.stop()
    for at, entry in enumerate(ALLOWED):
        if entry.call and at not in used and re.search(options.only, entry.op):
            wrong += 1
            print(f"allowed, but no longer needed: {entry.ops}: {entry.difference}")
    print(
        f"{len(made)} generated cases of {len(ops)} ops, {failures} of them failures, seed {options.seed}, in "
        f"{time.time() - started:.0f} s; {peers_faults} skipped for the peer's faults; {wrong} differences"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
