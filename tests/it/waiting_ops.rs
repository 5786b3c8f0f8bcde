//! Tests of the flag of ops whose kernels may wait for events other than their inputs, which decides which reductions
//! share a bucket.

use crate::support::Fallible;
use crate::support::op_nodes::rows;
use device::kernel::Kernel;
use kernels::testing::make_kernel;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Ops whose asynchronous kernels wait only for files, because their computation runs outside the pool's threads.
const FILE_OPS: &[&str] = &[
    "CloseSummaryWriter",
    "CreateSummaryDbWriter",
    "CreateSummaryFileWriter",
    "FileSystemSetConfiguration",
    "FlushSummaryWriter",
    "GenerateVocabRemapping",
    "ImmutableConst",
    "ImportEvent",
    "LoadAndRemapMatrix",
    "MatchingFiles",
    "MergeV2Checkpoints",
    "ReadFile",
    "Restore",
    "RestoreSlice",
    "RestoreV2",
    "Save",
    "SaveSlices",
    "SaveSnapshot",
    "SaveV2",
    "WriteAudioSummary",
    "WriteFile",
    "WriteGraphSummary",
    "WriteHistogramSummary",
    "WriteImageSummary",
    "WriteRawProtoSummary",
    "WriteScalarSummary",
    "WriteSummary",
];

#[test]
fn ops_with_asynchronous_kernels_are_marked_as_waiting() -> Fallible {
    let device = Arc::new(kernels::lone_device());
    let mut asynchronous = BTreeSet::new();
    for (def, nodes) in rows(kernels::table())? {
        // Some nodes have no kernel, because they lack an attribute that it needs, such as a function.
        if nodes.iter().any(|node| matches!(make_kernel(&device, node), Ok(Kernel::Async(_)))) {
            asynchronous.insert(def.op);
        }
    }
    for op in ["QueueDequeueV2", "CollectiveReduceV2", "IteratorGetNext", "Unstage", "MutexLock"] {
        assert!(asynchronous.contains(op), "{op} is not asynchronous");
    }
    let is_marked = |op: &str| graph::ops::lookup(op).is_some_and(|op| op.may_wait) || FILE_OPS.contains(&op);
    let unmarked: Vec<&str> = asynchronous.into_iter().filter(|op| !is_marked(op)).collect();
    assert!(unmarked.is_empty(), "add the families to WAITING in graph/src/ops/mod.rs: {unmarked:?}");
    Ok(())
}
