//! Batches of the inputs of concurrent steps: rows of several callers are joined, processed at once, and returned to
//! their callers.

use super::{Gradient, OpDef, unknown_shapes};
use crate::shape::PartialShape;

/// The op table fields that are common to ops on batches.
const BATCH: OpDef = OpDef { infer: unknown_shapes, gradient: Gradient::Leaf, ..OpDef::NEW };

pub(super) const OPS: &[OpDef] = &[
    OpDef {
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
    },
    OpDef {
        name: "Batch",
        inputs: &["in_tensors: T"],
        outputs: &["batched_tensors: T", "batch_index: int64", "id: int64"],
        attrs: &[
            "num_batch_threads: int",
            "max_batch_size: int",
            "max_enqueued_batches: int = 10",
            "batch_timeout_micros: int",
            "allowed_batch_sizes: list(int) = []",
            "grad_timeout_micros: int",
            "container: string = ''",
            "shared_name: string = ''",
            "batching_queue: string = ''",
            "T: list(type) >= 1",
        ],
        infer: |infer| {
            let count = infer.num_inputs();
            for i in 0..count {
                if let Some(rest) = infer.input(i).dims().and_then(|dims| dims.get(1..)) {
                    let batched = PartialShape::of_dims(std::iter::once(None).chain(rest.iter().copied()));
                    infer.set(i, batched);
                }
            }
            infer.set(count, [None, Some(3)]);
            infer.set(count + 1, PartialShape::scalar());
            Ok(())
        },
        ..BATCH
    },
    OpDef {
        name: "Unbatch",
        inputs: &["batched_tensor: T", "batch_index: int64", "id: int64"],
        outputs: &["unbatched_tensor: T"],
        attrs: &["timeout_micros: int", "container: string = ''", "shared_name: string = ''", "T: type"],
        ..BATCH
    },
    OpDef {
        name: "UnbatchGrad",
        inputs: &["original_input: T", "batch_index: int64", "grad: T", "id: int64"],
        outputs: &["batched_grad: T"],
        attrs: &["container: string = ''", "shared_name: string = ''", "T: type"],
        ..BATCH
    },
];
