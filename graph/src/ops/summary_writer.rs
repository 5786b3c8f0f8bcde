//! Writers of event files behind resource handles, for summaries that steps write themselves.

use super::OpDef;
use super::check::scalar;
use super::queue::BY_RESOURCE;

const STEP: &str = "step: int64";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "SummaryWriter",
        outputs: &["writer: resource"],
        attrs: &["shared_name: string = ''", "container: string = ''"],
        infer: scalar,
        ..BY_RESOURCE
    },
    OpDef {
        name: "CreateSummaryFileWriter",
        inputs: &[
            "writer: resource",
            "logdir: string",
            "max_queue: int32",
            "flush_millis: int32",
            "filename_suffix: string",
        ],
        ..BY_RESOURCE
    },
    OpDef {
        name: "CreateSummaryDbWriter",
        inputs: &[
            "writer: resource",
            "db_uri: string",
            "experiment_name: string",
            "run_name: string",
            "user_name: string",
        ],
        ..BY_RESOURCE
    },
    OpDef { name: "FlushSummaryWriter", inputs: &["writer: resource"], ..BY_RESOURCE },
    OpDef { name: "CloseSummaryWriter", inputs: &["writer: resource"], ..BY_RESOURCE },
    OpDef {
        name: "WriteSummary",
        inputs: &["writer: resource", STEP, "tensor: T", "tag: string", "summary_metadata: string"],
        attrs: &["T: type"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "WriteRawProtoSummary",
        inputs: &["writer: resource", STEP, "tensor: string"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "WriteScalarSummary",
        inputs: &["writer: resource", STEP, "tag: string", "value: T"],
        attrs: &["T: realnumbertype"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "WriteHistogramSummary",
        inputs: &["writer: resource", STEP, "tag: string", "values: T"],
        attrs: &[
            "T: {bfloat16, bool, float, double, half, int16, int32, int64, int8, uint16, uint32, uint64, uint8} = float",
        ],
        ..BY_RESOURCE
    },
    OpDef {
        name: "WriteImageSummary",
        inputs: &["writer: resource", STEP, "tag: string", "tensor: T", "bad_color: uint8"],
        attrs: &["max_images: int >= 1 = 3", "T: {uint8, double, float, half} = float"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "WriteAudioSummary",
        inputs: &["writer: resource", STEP, "tag: string", "tensor: float", "sample_rate: float"],
        attrs: &["max_outputs: int >= 1 = 3"],
        ..BY_RESOURCE
    },
    OpDef { name: "WriteGraphSummary", inputs: &["writer: resource", STEP, "tensor: string"], ..BY_RESOURCE },
    OpDef { name: "ImportEvent", inputs: &["writer: resource", "event: string"], ..BY_RESOURCE },
];
