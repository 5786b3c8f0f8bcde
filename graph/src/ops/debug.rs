//! Ops that a worker adds to a graph whose tensors a client watches (`RunOptions.debug_options`).

use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

/// The traits of ops that also watch variables without a value.
const WATCHES: Traits = Traits { allows_uninitialized_input: true, ..Traits::NONE };

const COPY: OpDef = OpDef {
    inputs: &["input: T"],
    outputs: &["output: T"],
    attrs: &["T: type", "tensor_name: string = ''", "debug_ops_spec: list(string) = []"],
    infer: same,
    gradient: Gradient::Leaf,
    traits: WATCHES,
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "Copy", ..COPY },
    OpDef { name: "CopyHost", ..COPY },
    OpDef {
        name: "DebugIdentity",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: type",
            "device_name: string = ''",
            "tensor_name: string = ''",
            "debug_urls: list(string) = []",
            "gated_grpc: bool = false",
        ],
        infer: same,
        gradient: Gradient::Leaf,
        traits: WATCHES,
        ..OpDef::NEW
    },
    OpDef {
        name: "DebugNanCount",
        inputs: &["input: T"],
        outputs: &["output: int64"],
        attrs: &[
            "T: type",
            "device_name: string = ''",
            "tensor_name: string = ''",
            "debug_urls: list(string) = []",
            "gated_grpc: bool = false",
        ],
        infer: count,
        gradient: Gradient::Leaf,
        traits: WATCHES,
        ..OpDef::NEW
    },
    OpDef {
        name: "DebugNumericSummary",
        inputs: &["input: T"],
        outputs: &["output: double"],
        attrs: &[
            "T: type",
            "device_name: string = ''",
            "tensor_name: string = ''",
            "debug_urls: list(string) = []",
            "lower_bound: float = -inf",
            "upper_bound: float = inf",
            "mute_if_healthy: bool = false",
            "gated_grpc: bool = false",
        ],
        infer: super::unknown_shapes,
        gradient: Gradient::Leaf,
        traits: WATCHES,
        ..OpDef::NEW
    },
];

fn same(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0);
    infer.set(0, shape);
    Ok(())
}

/// Sets the output's shape to that of a vector of one element.
fn count(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::from([1usize]));
    Ok(())
}
