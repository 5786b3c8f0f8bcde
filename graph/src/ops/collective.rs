//! Collective ops: reductions, gathers, broadcasts and exchanges between the devices of a group, over all tasks.
//!
//! Every member of a group runs one node for each instance; nodes with the same group and instance key meet.

mod gradient;

pub(crate) use gradient::of_receiver as gradient_of_receiver;

use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "CollectiveReduce",
        inputs: &["input: T"],
        outputs: &["data: T"],
        attrs: &[
            REDUCED,
            "group_size: int",
            "group_key: int",
            "instance_key: int",
            MERGE,
            FINAL,
            "subdiv_offsets: list(int)",
            "wait_for: list(int) = []",
            HINT,
            TIMEOUT,
        ],
        infer: same,
        gradient: Gradient::Defined(gradient::of_reduce),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveReduceV2",
        inputs: KEYED_AND_ORDERED,
        outputs: &["data: T"],
        attrs: &[REDUCED, MERGE, FINAL, HINT, TIMEOUT, STATELESS, TOKENS, SUBDIVISIONS],
        infer: keyed_same,
        gradient: Gradient::Defined(gradient::of_reduce),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveReduceScatterV2",
        inputs: KEYED_AND_ORDERED,
        outputs: &["data: T"],
        attrs: &[REDUCED, MERGE, FINAL, HINT, TIMEOUT, STATELESS, TOKENS, SUBDIVISIONS],
        infer: |infer| {
            check_keys(infer, 1)?;
            scale_rows(infer, |rows, members| {
                if rows % members != 0 {
                    crate::invalid!(
                        "input's first dimension, {rows}, is not a multiple of the group's size, {members}"
                    );
                }
                Ok(rows / members)
            })
        },
        gradient: Gradient::Defined(gradient::of_reduce_scatter),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveGather",
        inputs: &["input: T"],
        outputs: &["data: T"],
        attrs: &[
            MOVED,
            "group_size: int",
            "group_key: int",
            "instance_key: int",
            "shape: shape",
            HINT,
            TIMEOUT,
        ],
        infer: shape_attr,
        gradient: Gradient::Defined(gradient::of_gather),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveGatherV2",
        inputs: KEYED_AND_ORDERED,
        outputs: &["data: T"],
        attrs: &[MOVED, HINT, TIMEOUT, STATELESS, TOKENS],
        infer: |infer| {
            check_keys(infer, 1)?;
            scale_rows(infer, |rows, members| Ok(rows.saturating_mul(members)))
        },
        gradient: Gradient::Defined(gradient::of_gather),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveBcastSend",
        inputs: &["input: T"],
        outputs: &["data: T"],
        attrs: BROADCAST_BY_ATTRS,
        infer: shape_attr,
        gradient: Gradient::Defined(gradient::of_broadcast),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveBcastRecv",
        inputs: &[],
        outputs: &["data: T"],
        attrs: BROADCAST_BY_ATTRS,
        infer: shape_attr,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveBcastSendV2",
        inputs: KEYED,
        outputs: &["data: T"],
        attrs: &[BROADCAST, HINT, TIMEOUT],
        infer: keyed_same,
        gradient: Gradient::Defined(gradient::of_broadcast),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveBcastRecvV2",
        inputs: &["group_size: int32", "group_key: int32", "instance_key: int32", "shape: Tshape"],
        outputs: &["data: T"],
        attrs: &[BROADCAST, "Tshape: {int32, int64} = int32", HINT, TIMEOUT],
        infer: |infer| {
            check_keys(infer, 0)?;
            let shape = infer.value_as_shape(3)?;
            infer.set(0, shape);
            Ok(())
        },
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveAllToAllV2",
        inputs: KEYED_AND_ORDERED,
        outputs: &["data: T"],
        attrs: &[REDUCED, HINT, TIMEOUT, STATELESS, TOKENS],
        infer: keyed_same,
        gradient: Gradient::Defined(gradient::of_all_to_all),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    // CollectiveAssignGroupV2: row i of `group_assignment` lists the device indices of one group; the group's key is
    // `base_key` + i.
    OpDef {
        name: "CollectiveAssignGroupV2",
        inputs: &["group_assignment: int32", "device_index: int32", "base_key: int32"],
        outputs: &["group_size: int32", "group_key: int32"],
        infer: |infer| {
            infer.input_of_rank(0, 2)?;
            infer.input_of_rank(1, 0)?;
            infer.input_of_rank(2, 0)?;
            infer.set_all(PartialShape::of_dims([]));
            Ok(())
        },
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    // CollectiveInitializeCommunicator: each member of a communicator gives its rank. The members are the devices on
    // which the nodes run.
    OpDef {
        name: "CollectiveInitializeCommunicator",
        inputs: &["group_key: int32", "rank: int32", "group_size: int32"],
        outputs: &["communicator: resource"],
        attrs: &[HINT, TIMEOUT],
        infer: |infer| {
            check_keys(infer, 0)?;
            infer.set(0, PartialShape::scalar());
            Ok(())
        },
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    // CollectiveReduceV3 and CollectiveAllToAllV3: row i of `group_assignment` lists the ranks of one subgroup, whose
    // members combine only their own tensors. An empty `group_assignment` stands for one group of all ranks.
    OpDef {
        name: "CollectiveReduceV3",
        inputs: &["input: T", "communicator: resource", "group_assignment: int32"],
        outputs: &["data: T"],
        attrs: &[REDUCED, "reduction: {'Min', 'Max', 'Mul', 'Add'}", TIMEOUT],
        infer: same,
        gradient: Gradient::Defined(gradient::of_reduce_v3),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CollectiveAllToAllV3",
        inputs: &["input: T", "communicator: resource", "group_assignment: int32"],
        outputs: &["data: T"],
        attrs: &[REDUCED, TIMEOUT],
        infer: same,
        gradient: Gradient::Defined(gradient::within_subgroups),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    // _CollectiveAssemble: a worker joins the next epoch of a job whose number of workers varies; the leader's assembly
    // chooses the workers. `epoch` is the last epoch that the worker has been in, or 0. The output holds the number of
    // the next epoch, then the indices of its workers in ascending order.
    OpDef {
        name: "_CollectiveAssemble",
        inputs: &[
            "job_key: int32",
            "worker: int32",
            "least: int32",
            "most: int32",
            "has_values: bool",
            "epoch: int64",
            "patience_seconds: float",
        ],
        outputs: &["membership: int64"],
        infer: |infer| {
            (0..7).try_for_each(|i| infer.input_of_rank(i, 0).map(drop))?;
            infer.set(0, PartialShape::from([None]));
            Ok(())
        },
        traits: Traits::STATEFUL,
        is_extension: true,
        ..OpDef::NEW
    },
    // _CollectiveWatch: waits until the epoch of a worker has a change greater than `known`. The output holds the
    // number of the change, then the smallest of the last steps of the workers that have finished, or -1.
    OpDef {
        name: "_CollectiveWatch",
        inputs: &[
            "job_key: int32",
            "worker: int32",
            "epoch: int64",
            "known: int64",
            "patience_seconds: float",
        ],
        outputs: &["change: int64"],
        infer: |infer| {
            (0..5).try_for_each(|i| infer.input_of_rank(i, 0).map(drop))?;
            infer.set(0, PartialShape::from([Some(2)]));
            Ok(())
        },
        traits: Traits::STATEFUL,
        is_extension: true,
        ..OpDef::NEW
    },
    // _CollectiveFinish: ends a worker's training after `step`, and waits until all workers of its epoch have finished
    // or left the epoch. The output holds the indices of the workers that go on training.
    OpDef {
        name: "_CollectiveFinish",
        inputs: &[
            "job_key: int32",
            "worker: int32",
            "epoch: int64",
            "step: int64",
            "patience_seconds: float",
        ],
        outputs: &["unfinished: int64"],
        infer: |infer| {
            (0..5).try_for_each(|i| infer.input_of_rank(i, 0).map(drop))?;
            infer.set(0, PartialShape::from([None]));
            Ok(())
        },
        traits: Traits::STATEFUL,
        is_extension: true,
        ..OpDef::NEW
    },
];

const BROADCAST_BY_ATTRS: &[&str] =
    &[BROADCAST, "group_size: int", "group_key: int", "instance_key: int", "shape: shape", HINT, TIMEOUT];

const KEYED: &[&str] = &["input: T", "group_size: int32", "group_key: int32", "instance_key: int32"];
const KEYED_AND_ORDERED: &[&str] = &[
    "input: T",
    "group_size: int32",
    "group_key: int32",
    "instance_key: int32",
    "ordering_token: Nordering_token * resource",
];

/// The element types that collective reductions and exchanges support.
const REDUCED: &str = "T: {bfloat16, float, half, double, int32, int64}";
/// The element types that collective gathers support.
const MOVED: &str = "T: {float, half, double, int32, int64}";
/// The element types that collective broadcasts support.
const BROADCAST: &str = "T: {bool, float, half, double, int32, int64}";
const MERGE: &str = "merge_op: {'Min', 'Max', 'Mul', 'Add'}";
const FINAL: &str = "final_op: {'Id', 'Div'}";
const HINT: &str = "communication_hint: string = 'auto'";
const TIMEOUT: &str = "timeout_seconds: float = 0";
const STATELESS: &str = "is_stateless: bool = false";
const TOKENS: &str = "Nordering_token: int >= 0 = 0";
const SUBDIVISIONS: &str = "max_subdivs_per_device: int = -1";

fn same(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, infer.input(0));
    Ok(())
}

/// Sets the output's shape to the input's, for an op whose group and instance keys are inputs.
fn keyed_same(infer: &mut Infer<'_>) -> Result<()> {
    check_keys(infer, 1)?;
    same(infer)
}

fn shape_attr(infer: &mut Infer<'_>) -> Result<()> {
    let shape: PartialShape = infer.attr("shape")?;
    infer.set(0, shape);
    Ok(())
}

/// Checks that three inputs from `first` on are scalars: the size and keys of a collective, or the inputs that create a
/// communicator.
fn check_keys(infer: &Infer<'_>, first: usize) -> Result<()> {
    (first..first + 3).try_for_each(|i| infer.input_of_rank(i, 0).map(drop))
}

/// Sets the output's shape to the input's shape with another number of rows: `scale` returns it for the input's number
/// of rows and the group's size. The number is unknown if the rows or the size are unknown.
fn scale_rows(infer: &mut Infer<'_>, scale: fn(usize, usize) -> Result<usize>) -> Result<()> {
    let input = infer.input(0);
    let Some(dims) = input.dims() else { return Ok(()) };
    let Some((&rows, rest)) = dims.split_first() else {
        crate::invalid!("the input of {} must have at least one dimension", infer.op().name());
    };
    let members = infer.value(1).map(|size| size.item::<i32>()).transpose()?;
    let members = members.and_then(|members| usize::try_from(members).ok()).filter(|&members| members > 0);
    let rows: Dim = match (rows, members) {
        (Some(rows), Some(members)) => Some(scale(rows, members)?),
        _ => None,
    };
    let shape = PartialShape::of_dims(std::iter::once(rows).chain(rest.iter().copied()));
    infer.set(0, shape);
    Ok(())
}
