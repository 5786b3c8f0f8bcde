//! Statistics of input pipelines: aggregators, and the datasets that record in them.

use super::check::scalar;
use super::dataset_source::{DATASET, ELEMENTS};
use super::queue::BY_RESOURCE;
use super::{Gradient, OpDef, Traits};

const HANDLE: OpDef = OpDef {
    outputs: &["handle: resource"],
    attrs: &["container: string = ''", "shared_name: string = ''"],
    infer: scalar,
    gradient: Gradient::Leaf,
    traits: Traits::STATEFUL,
    ..OpDef::NEW
};

const SUMMARY: OpDef = OpDef {
    inputs: &["iterator: resource"],
    outputs: &["summary: string"],
    infer: scalar,
    gradient: Gradient::Leaf,
    traits: Traits::STATEFUL,
    ..OpDef::NEW
};

/// A dataset whose input's datasets record in an aggregator.
const RECORDED: OpDef = OpDef {
    inputs: &[
        "input_dataset: variant",
        "stats_aggregator: resource",
        "tag: string",
        "counter_prefix: string",
    ],
    attrs: ELEMENTS,
    traits: Traits::STATEFUL,
    ..DATASET
};

/// A dataset that records a value for each element.
const RECORDER: OpDef =
    OpDef { inputs: &["input_dataset: variant", "tag: string"], attrs: ELEMENTS, ..DATASET };

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "StatsAggregatorHandle", ..HANDLE },
    OpDef { name: "ExperimentalStatsAggregatorHandle", ..HANDLE },
    OpDef { name: "StatsAggregatorHandleV2", ..HANDLE },
    OpDef { name: "StatsAggregatorSummary", ..SUMMARY },
    OpDef { name: "ExperimentalStatsAggregatorSummary", ..SUMMARY },
    OpDef {
        name: "StatsAggregatorSetSummaryWriter",
        inputs: &["stats_aggregator: resource", "summary: resource"],
        ..BY_RESOURCE
    },
    OpDef { name: "SetStatsAggregatorDataset", ..RECORDED },
    OpDef { name: "ExperimentalSetStatsAggregatorDataset", ..RECORDED },
    OpDef { name: "BytesProducedStatsDataset", ..RECORDER },
    OpDef { name: "ExperimentalBytesProducedStatsDataset", ..RECORDER },
    OpDef { name: "LatencyStatsDataset", ..RECORDER },
    OpDef { name: "ExperimentalLatencyStatsDataset", ..RECORDER },
];
