"""LSTM and GRU cells, and LSTM layers."""
import numpy as np

from . import Call, case

# (Steps, batch, input, cell), and the number of steps that are computed.
LAYERS = (((4, 2, 3, 2), 4), ((3, 1, 1, 5), 3), ((2, 3, 4, 1), 2))


def weights(c, inputs, cell):
    return [c.values((inputs + cell, 4 * cell), -1, 1), *(c.values((cell,), -1, 1) for _ in range(3)), c.values((4 * cell,), -1, 1)]


@case("LSTMBlockCell")
def cells(c):
    for batch, inputs, cell in ((2, 3, 2), (1, 1, 4), (3, 2, 1)):
        for attrs in (dict(), dict(use_peephole=True, cell_clip=0.4, forget_bias=0.5)):
            yield Call(c.values((batch, inputs), -1, 1), c.values((batch, cell), -1, 1), c.values((batch, cell), -1, 1), *weights(c, inputs, cell), loose=4, **attrs)


@case("LSTMBlockCellGrad")
def cell_grads(c):
    for batch, inputs, cell in ((2, 3, 2), (1, 1, 4)):
        for peephole in (False, True):
            state = lambda low=-1: c.values((batch, cell), low, 1)
            values = [state(0), state(), state(0), state(0), state(), state()]
            yield Call(c.values((batch, inputs), -1, 1), state(), state(), *weights(c, inputs, cell), *values, state(), state(), use_peephole=peephole, loose=10)


@case("BlockLSTM", "BlockLSTMV2")
def layers(c):
    for (steps, batch, inputs, cell), count in LAYERS:
        for attrs in (dict(), dict(use_peephole=True, cell_clip=0.4)):
            state = lambda: c.values((batch, cell), -1, 1)
            yield Call(np.int64(count), c.values((steps, batch, inputs), -1, 1), state(), state(), *weights(c, inputs, cell), loose=8, **attrs)
    # The peer initialises only the states and outputs of the steps that are not computed.
    yield Call(np.int64(2), c.values((4, 2, 3), -1, 1), c.values((2, 2), -1, 1), c.values((2, 2), -1, 1), *weights(c, 3, 2), loose=8, unset=(0, 2, 3, 4, 5))


@case("BlockLSTMGrad", "BlockLSTMGradV2")
def layer_grads(c):
    for (steps, batch, inputs, cell), count in (*LAYERS, ((4, 2, 3, 2), 2)):
        for peephole in (False, True):
            state, all_states = lambda: c.values((batch, cell), -1, 1), lambda low=-1: c.values((steps, batch, cell), low, 1)
            values = [all_states(0), all_states(), all_states(0), all_states(0), all_states(), all_states(), all_states()]
            yield Call(np.int64(count), c.values((steps, batch, inputs), -1, 1), state(), state(), *weights(c, inputs, cell), *values, all_states(), all_states(), use_peephole=peephole, loose=20)


def gru(c, batch, inputs, cell):
    return [
        c.values((batch, inputs), -1, 1), c.values((batch, cell), -1, 1), c.values((inputs + cell, 2 * cell), -1, 1),
        c.values((inputs + cell, cell), -1, 1), c.values((2 * cell,), -1, 1), c.values((cell,), -1, 1),
    ]


@case("GRUBlockCell")
def gru_cells(c):
    for sizes in ((2, 3, 2), (1, 1, 4), (3, 2, 1)):
        yield Call(*gru(c, *sizes))


@case("GRUBlockCellGrad")
def gru_grads(c):
    for batch, inputs, cell in ((2, 3, 2), (1, 1, 4), (3, 2, 1)):
        state = lambda low: c.values((batch, cell), low, 1)
        yield Call(*gru(c, batch, inputs, cell), state(0), state(0), state(-1), state(-1))
