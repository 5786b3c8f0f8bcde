//! Kernels that a GPU shares with the CPU, because they read no elements, or their inputs are in host memory on
//! all devices. Tensors of `int32`, usually shapes and counts, stay in host memory as in TensorFlow, so a GPU
//! shares all kernels for `int32` with the CPU.

use device::kernel::{ALL_ARGUMENTS, Kernel, KernelDef, KernelInit, ON_HOST};
use device::segment_runner::CaptureClass;
use device::{Error, Result};
use graph::DType;

/// Returns the definition of a GPU kernel that is the CPU's kernel of the op, with the arguments `host_memory`
/// in host memory.
pub(super) const fn same_as_cpu(
    op: &'static str,
    types: &'static [(&'static str, &'static [DType])],
    host_memory: &'static [&'static str],
) -> KernelDef {
    KernelDef { host_memory, ..KernelDef::of(op, types, cpu_kernel) }
}

/// Returns the definition with a lower priority than the CPU's kernel, so that nodes are placed on the CPU
/// unless they ask for a GPU.
pub(super) const fn on_demand(def: KernelDef) -> KernelDef {
    KernelDef { priority: -1, ..def }
}

/// Like [`same_as_cpu`], for a kernel that depends only on shapes and host inputs, so that a captured graph
/// needs no launch for it.
const fn passing(
    op: &'static str,
    types: &'static [(&'static str, &'static [DType])],
    host_memory: &'static [&'static str],
) -> KernelDef {
    KernelDef { capture: CaptureClass::Passes, ..same_as_cpu(op, types, host_memory) }
}

/// Makes the CPU's kernel of the node.
fn cpu_kernel(init: &KernelInit<'_>) -> Result<Kernel> {
    let def = kernels::table().find(init.node);
    let def = def.ok_or_else(|| Error::internal(format!("{} has no CPU kernel", init.node.op.name())))?;
    (def.make)(init)
}

const INT32: &[DType] = &[DType::Int32];

/// Returns the definition of a logical op on booleans in host memory.
const fn hosted(op: &'static str) -> KernelDef {
    KernelDef { mark: Some(ON_HOST), ..passing(op, &[], ALL_ARGUMENTS) }
}

/// Kernels for nodes that are marked to run on the host. In the kernel table they must precede the unmarked
/// kernels of the same ops.
pub(super) const HOSTED: &[KernelDef] = &[hosted("LogicalAnd"), hosted("LogicalOr"), hosted("LogicalNot")];

macro_rules! rows {
    (
        passing: $($passing:literal $type_attr:literal $hosted:expr;)*
        of_shapes: $($of_shapes:literal)*;
        elsewhere: $($elsewhere:literal)*;
        $(int32 $attr:literal: $($int32:literal)*;)*
    ) => {
        &[
            $(
                passing($passing, &[($type_attr, INT32)], ALL_ARGUMENTS),
                passing($passing, &[], $hosted),
            )*
            $(passing($of_shapes, &[], ALL_ARGUMENTS),)*
            $(same_as_cpu($elsewhere, &[], ALL_ARGUMENTS),)*
            $($(passing($int32, &[($attr, INT32)], ALL_ARGUMENTS),)*)*
        ]
    };
}

/// The kernels that a GPU shares with the CPU. `passing` lists ops that output their input or its shape, each
/// with its arguments in host memory. `of_shapes` and `elsewhere` list ops with all arguments in host memory;
/// the results of the ops in `of_shapes` depend only on shapes and host inputs. `int32` lists ops whose kernels
/// for `int32` run on the host.
pub(super) const KERNELS: &[KernelDef] = rows! {
    passing:
        "Identity" "T" &[];
        "IdentityN" "T" &[];
        "StopGradient" "T" &[];
        "PreventGradient" "T" &[];
        "Snapshot" "T" &[];
        "Reshape" "T" &["shape"];
        "ExpandDims" "T" &["dim"];
        "Squeeze" "T" &[];
        "EnsureShape" "T" &[];
        "PlaceholderWithDefault" "dtype" &[];
        "Shape" "T" &["output"];
        "ShapeN" "T" &["output"];
        "Size" "T" &["output"];
        "Rank" "T" &["output"];
    of_shapes:
        "NoOp" "BroadcastGradientArgs" "BroadcastArgs" "ConcatOffset" "InvertPermutation" "Range" "LinSpace";
    elsewhere:
        "Assert" "Placeholder" "PlaceholderV2" "StatelessRandomGetKeyCounter" "StatelessRandomGetAlg"
        "StatelessRandomGetKeyCounterAlg" "FakeParam" "ToBool" "DeviceIndex";
    int32 "T": "Add" "AddV2" "Sub" "Mul" "Div" "FloorDiv" "FloorMod" "TruncateDiv" "TruncateMod" "Mod" "Maximum"
        "Minimum" "Neg" "Abs" "Sign" "Square" "AddN" "Sum" "Prod" "Max" "Min" "Mean" "Equal" "NotEqual" "Less"
        "LessEqual" "Greater" "GreaterEqual" "Concat" "ConcatV2" "Pack" "Unpack" "Split" "SplitV" "Slice" "StridedSlice"
        "Pad" "PadV2" "Tile" "Fill" "ZerosLike" "OnesLike" "Select" "SelectV2" "ClipByValue" "ReverseV2" "BroadcastTo"
        "DynamicPartition" "DynamicStitch" "ParallelDynamicStitch" "OneHot" "ScatterNd" "TensorScatterAdd"
        "TensorScatterSub" "TensorScatterMin" "TensorScatterMax" "UnsortedSegmentSum" "UnsortedSegmentProd"
        "UnsortedSegmentMax" "UnsortedSegmentMin" "StridedSliceGrad" "Reverse" "ReverseSequence" "Roll" "TopK" "TopKV2"
        "ArgMax" "ArgMin" "Cumsum" "Cumprod" "SquaredDifference" "Pow" "Round" "BiasAdd" "MirrorPad";
    int32 "dtype": "Const";
    int32 "Tparams": "Gather" "GatherV2" "GatherNd";
};
