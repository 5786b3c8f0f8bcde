//! Batches of the inputs of concurrent steps: rows of several callers are joined, processed at once, and returned to
//! their callers.

use super::{Gradient, OpDef, unknown_shapes};

/// The op table fields that are common to ops on batches.
const BATCH: OpDef = OpDef { infer: unknown_shapes, gradient: Gradient::Leaf, ..OpDef::NEW };

pub(super) const OPS: &[OpDef] = &[OpDef {
    name: "BatchFunction",
    inputs: &["in_tensors: Tin", "captured_tensors: Tcaptured"],
    outputs: &["out_tensors: Tout"],
    attrs: &[
        "f: func",
        "num_batch_threads: int",
        "max_batch_size: int",
        "batch_timeout_micros: int",
        "max_enqueued_batches: int = 10",
        "allowed_batch_sizes: list(int) = []",
        "container: string = ''",
        "shared_name: string = ''",
        "batching_queue: string = ''",
        "low_priority_max_batch_size: int = 0",
        "low_priority_batch_timeout_micros: int = 0",
        "low_priority_allowed_batch_sizes: list(int) = []",
        "low_priority_max_enqueued_batches: int = 0",
        "mixed_priority_policy: {'low_priority_padding_with_max_batch_size', 'low_priority_padding_with_next_allowed_batch_size', 'priority_isolation', 'priority_merge'} = 'low_priority_padding_with_max_batch_size'",
        "batch_padding_policy: {'PAD_UP', 'BATCH_DOWN', 'MINIMIZE_TPU_COST_PER_REQUEST'} = 'PAD_UP'",
        "Tin: list(type) >= 1",
        "Tcaptured: list(type) >= 0",
        "Tout: list(type) >= 1",
        "enable_large_batch_splitting: bool = false",
    ],
    ..BATCH
}];
