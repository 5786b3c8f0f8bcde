//! Collective ops over several GPUs of one task, implemented with NVIDIA's NCCL or by copies between GPUs.

use super::{OpDef, Traits, binary};
use crate::error::Result;
use crate::infer::Infer;

pub(super) const OPS: &[OpDef] = &[
    // In each step, `num_devices` nodes with the same `shared_name` take part in one reduction, each on its own GPU.
    OpDef {
        name: "NcclAllReduce",
        inputs: &["input: T"],
        outputs: &["data: T"],
        attrs: &[REDUCTION, TYPES, "num_devices: int", "shared_name: string"],
        infer: same,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "NcclReduce",
        inputs: &["input: num_devices * T"],
        outputs: &["data: T"],
        attrs: &[REDUCTION, TYPES, "num_devices: int >= 1"],
        infer: binary::merged,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "NcclBroadcast",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &[TYPES, "shape: shape"],
        infer: same,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

const REDUCTION: &str = "reduction: {'min', 'max', 'prod', 'sum'}";
const TYPES: &str = "T: {half, float, double, int32, int64}";

fn same(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, infer.input(0));
    Ok(())
}
