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
        name: "DebugIdentityV2",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: type",
            "tfdbg_context_id: string = ''",
            "op_name: string = ''",
            "output_slot: int = -1",
            "tensor_debug_mode: int = -1",
            "debug_urls: list(string) = []",
            "circular_buffer_size: int = 1000",
            "tfdbg_run_id: string = ''",
        ],
        infer: same,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DebugIdentityV3",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: type",
            "device_name: string = ''",
            "tensor_name: string = ''",
            "io_of_node: string = ''",
            "is_input: bool = false",
            "io_index: int = -1",
            "debug_urls: list(string) = []",
            "gated_grpc: bool = false",
        ],
        infer: same,
        gradient: Gradient::Leaf,
        traits: Traits { stateful: true, ..WATCHES },
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
    OpDef {
        name: "DebugNumericSummaryV2",
        inputs: &["input: T"],
        outputs: &["output: output_dtype"],
        attrs: &[
            "output_dtype: {float, double} = float",
            "T: type",
            "tensor_debug_mode: int = -1",
            "tensor_id: int = -1",
        ],
        infer: numeric_summary,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DebugGradientIdentity",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same,
        traits: Traits { allows_uninitialized_input: true, ..Traits::NONE },
        ..OpDef::NEW
    },
    OpDef {
        name: "DebugGradientRefIdentity",
        inputs: &["input: Ref(T)"],
        outputs: &["output: Ref(T)"],
        attrs: &["T: type"],
        infer: same,
        traits: Traits { allows_uninitialized_input: true, ..Traits::NONE },
        ..OpDef::NEW
    },
    OpDef {
        name: "CheckPinned",
        inputs: &["tensor: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same,
        ..OpDef::NEW
    },
];

/// The output is a vector whose length depends on the mode.
fn numeric_summary(infer: &mut Infer<'_>) -> Result<()> {
    let length = match infer.attr::<i64>("tensor_debug_mode")? {
        2 => 2,
        3 => 5,
        4 => 11,
        5 => 10,
        8 => 3,
        _ => return Ok(()),
    };
    infer.set(0, PartialShape::vector(Some(length)));
    Ok(())
}

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
