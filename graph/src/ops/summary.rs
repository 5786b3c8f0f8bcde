//! Summaries: values as protobuf messages that are stored in event files.

use super::check::scalar;
use super::{Gradient, OpDef};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "ScalarSummary",
        inputs: &["tags: string", "values: T"],
        outputs: &["summary: string"],
        attrs: &["T: realnumbertype"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "HistogramSummary",
        inputs: &["tag: string", "values: T"],
        outputs: &["summary: string"],
        attrs: &["T: realnumbertype = float"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ImageSummary",
        inputs: &["tag: string", "tensor: T"],
        outputs: &["summary: string"],
        attrs: &[
            "max_images: int >= 1 = 3",
            "T: {uint8, float, half, double} = float",
            "bad_color: tensor = uint8[255, 0, 0, 255]",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AudioSummary",
        inputs: &["tag: string", "tensor: float"],
        outputs: &["summary: string"],
        attrs: &["sample_rate: float", "max_outputs: int >= 1 = 3"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AudioSummaryV2",
        inputs: &["tag: string", "tensor: float", "sample_rate: float"],
        outputs: &["summary: string"],
        attrs: &["max_outputs: int >= 1 = 3"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorSummary",
        inputs: &["tensor: T"],
        outputs: &["summary: string"],
        attrs: &[
            "T: type",
            "description: string = ''",
            "labels: list(string) = []",
            "display_name: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorSummaryV2",
        inputs: &["tag: string", "tensor: T", "serialized_summary_metadata: string"],
        outputs: &["summary: string"],
        attrs: &["T: type"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "MergeSummary",
        inputs: &["inputs: N * string"],
        outputs: &["summary: string"],
        attrs: &["N: int >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];
