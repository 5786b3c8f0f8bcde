"""Where an answer may differ from TensorFlow's, and why. An entry holds a call that shows the difference: it fails the
comparison when that call no longer does."""
import collections
import re

import numpy as np

from cases import Call

# `ops` and `difference` are regular expressions, for the op's name and for what `generated.py` says of a case.
Allowed = collections.namedtuple("Allowed", "ops difference reason op types call")

ALLOWED = ()


def entry_for(op, said):
    """The entry that allows what is said of an op's case."""
    for entry in ALLOWED:
        if re.fullmatch(entry.ops, op) and re.search(entry.difference, said):
            return entry
    return None
