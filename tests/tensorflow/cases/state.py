"""Variables, scatters and optimizers. An input that is a reference or a handle is given as its variable's initial
value."""
import numpy as np

from . import Call, case


@case("Assign", "AssignAdd", "AssignSub")
def assign(c):
    for shape in ((3, 4), (), (0, 3)):
        yield Call(c.values(shape), c.values(shape), steps=2)
    if c.op == "Assign":
        yield Call(c.values((3, 4)), c.values((2,)), validate_shape=False)


@case("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
def assign_resource(c):
    for shape in ((3, 4), (), (0, 3)):
        yield Call(c.values(shape, attr="dtype"), c.values(shape, attr="dtype"), steps=2)


@case("ReadVariableOp", "VarIsInitializedOp", "VariableShape", "IsVariableInitialized", "DisableCopyOnRead")
def read(c):
    attr = "dtype" if "dtype" in c.types else "float"
    for shape in ((3, 4), (), (0, 3)):
        yield Call(c.values(shape, attr=attr))


@case("CountUpTo")
def count(c):
    yield Call(c.array(0), limit=5, steps=3)
    yield Call(c.array(-2), limit=1, steps=3)


@case("ResourceGather")
def gather(c):
    index = lambda v: c.array(v, "Tindices")
    yield Call(c.values((5, 3), attr="dtype"), index([4, 0, 0]))
    yield Call(c.values((5,), attr="dtype"), index([[1, 2], [3, 4]]))
    yield Call(c.values((2, 5), attr="dtype"), index([[1, 2], [3, 4]]), batch_dims=1)
    yield Call(c.values((5, 2), attr="dtype"), index([]))


SCATTERS = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Update")


@case(*(f"{prefix}Scatter{kind}" for prefix in ("", "Resource") for kind in SCATTERS))
def scatter(c):
    attr = "T" if "T" in c.types else "dtype"
    index = lambda v: c.array(v, "Tindices")
    make = lambda *shape: c.values(shape, 1, 4, attr)
    # Updates must not repeat an index, because their order is not defined.
    again = 3 if c.op.endswith("Update") else 1
    yield Call(make(5, 3), index([4, 0, again]), make(3, 3), steps=2)
    yield Call(make(5), index([[1, 2], [3, 4]]), make(2, 2))
    yield Call(make(5, 2), index(2), make(2))
    yield Call(make(5, 2), index([]), make(0, 2))
    yield Call(make(5, 2), index([1, 3]), c.values((), 1, 4, attr))
    if not c.op.endswith("Update"):
        yield Call(make(5, 2), index([1, 3, 1]), make(3, 2))


@case(
    *(f"ScatterNd{kind}" for kind in ("Add", "Sub", "Max", "Min", "Update")),
    *(f"ResourceScatterNd{kind}" for kind in ("Add", "Sub", "Max", "Min", "Update")),
)
def scatter_nd(c):
    index = lambda v: c.array(v, "Tindices")
    make = lambda *shape: c.values(shape, 1, 4)
    yield Call(make(5), index([[1], [3], [2]]), make(3), steps=2)
    yield Call(make(3, 3), index([[0, 1], [2, 2]]), make(2))
    yield Call(make(3, 4), index([[1], [0]]), make(2, 4))
    yield Call(make(2, 2), index([[[0], [1]]]), make(1, 2, 2))
    yield Call(make(4), np.zeros([0, 1], c.dtype("Tindices")), make(0))


@case(*(f"TensorScatter{kind}" for kind in ("Add", "Sub", "Max", "Min", "Update")), "ScatterNdNonAliasingAdd")
def scatter_tensor(c):
    index = lambda v: c.array(v, "Tindices")
    make = lambda *shape: c.values(shape, 1, 4)
    yield Call(make(5), index([[1], [3], [2]]), make(3))
    yield Call(make(3, 3), index([[0, 1], [2, 2]]), make(2))
    yield Call(make(3, 4), index([[1], [0]]), make(2, 4))
    yield Call(make(2, 2), index([[[0], [1]]]), make(1, 2, 2))
    yield Call(make(4), np.zeros([0, 1], c.dtype("Tindices")), make(0))


@case("StridedSliceAssign", "ResourceStridedSliceAssign", "TensorStridedSliceUpdate")
def strided_slice_assign(c):
    index = lambda *v: c.array(v, "Index")
    make = lambda *shape: c.values(shape)
    yield Call(make(5), index(1), index(4), index(1), make(3))
    yield Call(make(3, 4), index(2, -1), index(0, -5), index(-1, -2), make(2, 2), steps=2)
    yield Call(make(3, 4), index(1, 0), index(2, 4), index(1, 1), make(4), shrink_axis_mask=1)
    yield Call(make(2, 3), index(0, 0), index(0, 0), index(1, 1), make(2, 1), begin_mask=3, end_mask=3)
    yield Call(make(2, 3, 2), index(0, 0, 1), index(0, 0, 2), index(1, 1, 1), make(2, 3, 1, 1), ellipsis_mask=1, new_axis_mask=2)
    yield Call(make(3), index(0), index(3), index(1), make())


# Values of an optimizer's scalar inputs; all other inputs are slots.
SCALARS = {
    "lr": 0.1, "alpha": 0.1, "rho": 0.9, "epsilon": 1e-3, "beta1": 0.9, "beta2": 0.99, "beta1_power": 0.9,
    "beta2_power": 0.99, "momentum": 0.9, "l1": 0.05, "l2": 0.2, "l2_shrinkage": 0.1, "lr_power": -0.5,
    "sign_decay": 0.9, "beta": 0.9, "logbase": 1.5,
}
RULES = (
    "AdaMax", "Adadelta", "Adagrad", "AdagradDA", "AdagradV2", "Adam", "AddSign", "CenteredRMSProp", "Ftrl", "FtrlV2",
    "GradientDescent", "Momentum", "PowerSign", "ProximalAdagrad", "ProximalGradientDescent", "RMSProp",
)
FLAGS = ("use_nesterov", "update_slots", "multiply_linear_by_lr")
RARE = ("AdamWithAmsgrad", "KerasMomentum")
DENSE_ONLY = ("AdaMax", "Adam", "AddSign", "GradientDescent", "PowerSign")
SPARSE = tuple(rule for rule in RULES if rule not in DENSE_ONLY)


@case(
    *(f"Apply{rule}" for rule in RULES), *(f"ResourceApply{rule}" for rule in RULES + RARE),
    *(f"SparseApply{rule}" for rule in SPARSE), *(f"ResourceSparseApply{rule}" for rule in SPARSE + ("KerasMomentum",)),
)
def optimizer(c):
    for shape in ((5, 3), (7,)) + (() if "Sparse" in c.op else ((), (0, 2), (300,))):
        for flag in (None, *(a for a in FLAGS if a in c.signature_attrs)):
            inputs = []
            for name in c.signature_inputs:
                if name in ("grad", "delta"):
                    rows = (3,) + shape[1:] if "Sparse" in c.op else shape
                    inputs.append(c.values(rows, -1, 1))
                elif name == "indices":
                    inputs.append(c.array([4, 0, 2], "Tindices"))
                elif name == "global_step":
                    inputs.append(np.array(3, np.int64))
                elif name == "alpha" and "AddSign" in c.op:
                    inputs.append(c.array(1.0))
                elif name in SCALARS:
                    inputs.append(c.array(SCALARS[name]))
                elif name == "var":
                    inputs.append(c.values(shape, -1, 1))
                elif name == "mg":
                    inputs.append(c.values(shape, -0.1, 0.1))
                else:
                    inputs.append(c.values(shape, 0.3, 1))
            attrs = {} if flag is None else {flag: flag != "update_slots"}
            # The accumulator of Ftrl is a difference of large numbers.
            coarse = "Ftrl" in c.op and c.name("T") in ("half", "bfloat16")
            yield Call(*inputs, steps=2, loose=40 if coarse else 4, **attrs)


@case("ResourceGatherNd")
def resource_gather_nd(c):
    for shape, indices in (((4, 3), [[0, 1], [3, 2]]), ((4, 3), [[1], [0]]), ((3, 2, 2), [[[0, 1]], [[2, 0]]]), ((4,), [2]), ((2, 2), np.zeros((0, 2)))):
        yield Call(c.values(shape, attr="dtype"), c.array(indices, "Tindices"))


@case("ResourceCountUpTo")
def resource_count(c):
    yield Call(c.array(0), limit=5, steps=3)
    yield Call(c.array(-2), limit=1, steps=3)


@case("RefIdentity")
def ref_identity(c):
    for shape in ((3, 4), (), (0, 3)):
        yield Call(c.values(shape))
