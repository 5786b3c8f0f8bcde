"""CTC losses and decoders, and the n-th smallest element."""
import numpy as np

from . import Call, case


def lengths(*values):
    return np.array(values, np.int32)


@case("CTCLoss")
def ctc_loss(c):
    places = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0]], np.int64)
    labels = lengths(1, 0, 2, 3, 3, 0)
    for attrs in (dict(), dict(preprocess_collapse_repeated=True), dict(ctc_merge_repeated=False), dict(ignore_longer_outputs_than_inputs=True)):
        yield Call(c.values((7, 3, 5), -3, 3), places, labels, lengths(7, 5, 6), loose=30, within=2e-5, **attrs)
    yield Call(c.values((6, 3, 5), -3, 3), places, labels, lengths(2, 6, 0), ignore_longer_outputs_than_inputs=True, loose=30, within=2e-5)


@case("CTCGreedyDecoder")
def ctc_greedy(c):
    for attrs in (dict(), dict(merge_repeated=True), dict(blank_index=0), dict(blank_index=-2, merge_repeated=True)):
        yield Call(c.values((9, 3, 4), -3, 3), lengths(9, 0, 5), loose=10, **attrs)


@case("CTCBeamSearchDecoder")
def ctc_beam(c):
    for attrs in (dict(beam_width=20, top_paths=3), dict(beam_width=4, top_paths=2, merge_repeated=False), dict(beam_width=1, top_paths=1)):
        yield Call(c.values((6, 2, 4), -3, 3), lengths(6, 4), loose=20, within=2e-5, **attrs)


@case("NthElement")
def nth(c):
    for shape in ((7,), (3, 5), (2, 3, 4)):
        for n in (0, 2):
            for reverse in (False, True):
                yield Call(c.distinct(shape), np.int32(n), reverse=reverse)
