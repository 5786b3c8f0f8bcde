//! Statistics of input pipelines: aggregators, and the datasets that record in them.

use super::check::scalar;
use super::dataset_source::{DATASET, ELEMENTS};
use super::queue::BY_RESOURCE;
use super::{Gradient, OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "StatsAggregatorHandle",
        outputs: &["handle: resource"],
        attrs: &["container: string = ''", "shared_name: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalStatsAggregatorHandle",
        outputs: &["handle: resource"],
        attrs: &["container: string = ''", "shared_name: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StatsAggregatorHandleV2",
        outputs: &["handle: resource"],
        attrs: &["container: string = ''", "shared_name: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StatsAggregatorSummary",
        inputs: &["iterator: resource"],
        outputs: &["summary: string"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalStatsAggregatorSummary",
        inputs: &["iterator: resource"],
        outputs: &["summary: string"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StatsAggregatorSetSummaryWriter",
        inputs: &["stats_aggregator: resource", "summary: resource"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "SetStatsAggregatorDataset",
        inputs: &[
            "input_dataset: variant",
            "stats_aggregator: resource",
            "tag: string",
            "counter_prefix: string",
        ],
        attrs: ELEMENTS,
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalSetStatsAggregatorDataset",
        inputs: &[
            "input_dataset: variant",
            "stats_aggregator: resource",
            "tag: string",
            "counter_prefix: string",
        ],
        attrs: ELEMENTS,
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "BytesProducedStatsDataset",
        inputs: &["input_dataset: variant", "tag: string"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalBytesProducedStatsDataset",
        inputs: &["input_dataset: variant", "tag: string"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "LatencyStatsDataset",
        inputs: &["input_dataset: variant", "tag: string"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalLatencyStatsDataset",
        inputs: &["input_dataset: variant", "tag: string"],
        attrs: ELEMENTS,
        ..DATASET
    },
];
