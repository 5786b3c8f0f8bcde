//! Staging areas: tensors that one step puts and another step takes, in order or by key.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};

/// The fields that the op table rows of all staging ops share.
const STAGING: OpDef = OpDef { gradient: Gradient::Leaf, traits: Traits::STATEFUL, ..OpDef::NEW };

const VALUES: &[&str] = &[
    "capacity: int >= 0 = 0",
    "memory_limit: int >= 0 = 0",
    "dtypes: list(type) >= 1",
    "container: string = ''",
    "shared_name: string = ''",
];

const ANY_VALUES: &[&str] = &[
    "capacity: int >= 0 = 0",
    "memory_limit: int >= 0 = 0",
    "dtypes: list(type)",
    "container: string = ''",
    "shared_name: string = ''",
];

const KEYED_VALUES: &[&str] = &[
    "capacity: int >= 0 = 0",
    "memory_limit: int >= 0 = 0",
    "dtypes: list(type)",
    "fake_dtypes: list(type) >= 1",
    "container: string = ''",
    "shared_name: string = ''",
];

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "Stage", inputs: &["values: dtypes"], attrs: VALUES, ..STAGING },
    OpDef { name: "Unstage", outputs: &["values: dtypes"], attrs: VALUES, ..STAGING },
    OpDef {
        name: "StagePeek",
        inputs: &["index: int32"],
        outputs: &["values: dtypes"],
        attrs: VALUES,
        ..STAGING
    },
    OpDef { name: "StageSize", outputs: &["size: int32"], attrs: ANY_VALUES, infer: scalar, ..STAGING },
    OpDef { name: "StageClear", attrs: ANY_VALUES, ..STAGING },
    OpDef {
        name: "MapStage",
        inputs: &["key: int64", "indices: int32", "values: fake_dtypes"],
        attrs: KEYED_VALUES,
        ..STAGING
    },
    OpDef {
        name: "MapPeek",
        inputs: &["key: int64", "indices: int32"],
        outputs: &["values: dtypes"],
        attrs: VALUES,
        ..STAGING
    },
    OpDef {
        name: "MapUnstage",
        inputs: &["key: int64", "indices: int32"],
        outputs: &["values: dtypes"],
        attrs: VALUES,
        ..STAGING
    },
    OpDef {
        name: "MapUnstageNoKey",
        inputs: &["indices: int32"],
        outputs: &["key: int64", "values: dtypes"],
        attrs: VALUES,
        infer: scalar,
        ..STAGING
    },
    OpDef { name: "MapSize", outputs: &["size: int32"], attrs: ANY_VALUES, infer: scalar, ..STAGING },
    OpDef {
        name: "MapIncompleteSize",
        outputs: &["size: int32"],
        attrs: ANY_VALUES,
        infer: scalar,
        ..STAGING
    },
    OpDef { name: "MapClear", attrs: ANY_VALUES, ..STAGING },
    OpDef {
        name: "OrderedMapStage",
        inputs: &["key: int64", "indices: int32", "values: fake_dtypes"],
        attrs: KEYED_VALUES,
        ..STAGING
    },
    OpDef {
        name: "OrderedMapPeek",
        inputs: &["key: int64", "indices: int32"],
        outputs: &["values: dtypes"],
        attrs: VALUES,
        ..STAGING
    },
    OpDef {
        name: "OrderedMapUnstage",
        inputs: &["key: int64", "indices: int32"],
        outputs: &["values: dtypes"],
        attrs: VALUES,
        ..STAGING
    },
    OpDef {
        name: "OrderedMapUnstageNoKey",
        inputs: &["indices: int32"],
        outputs: &["key: int64", "values: dtypes"],
        attrs: VALUES,
        infer: scalar,
        ..STAGING
    },
    OpDef { name: "OrderedMapSize", outputs: &["size: int32"], attrs: ANY_VALUES, infer: scalar, ..STAGING },
    OpDef {
        name: "OrderedMapIncompleteSize",
        outputs: &["size: int32"],
        attrs: ANY_VALUES,
        infer: scalar,
        ..STAGING
    },
    OpDef { name: "OrderedMapClear", attrs: ANY_VALUES, ..STAGING },
];
