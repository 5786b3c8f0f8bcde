//! Staging areas: tensors put by one step and taken by another, in order or by key.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Stage",
        inputs: &["values: dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "Unstage",
        outputs: &["values: dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StagePeek",
        inputs: &["index: int32"],
        outputs: &["values: dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StageSize",
        outputs: &["size: int32"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StageClear",
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MapStage",
        inputs: &["key: int64", "indices: int32", "values: fake_dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "fake_dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MapPeek",
        inputs: &["key: int64", "indices: int32"],
        outputs: &["values: dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MapUnstage",
        inputs: &["key: int64", "indices: int32"],
        outputs: &["values: dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MapUnstageNoKey",
        inputs: &["indices: int32"],
        outputs: &["key: int64", "values: dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MapSize",
        outputs: &["size: int32"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MapIncompleteSize",
        outputs: &["size: int32"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MapClear",
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "OrderedMapStage",
        inputs: &["key: int64", "indices: int32", "values: fake_dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "fake_dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "OrderedMapPeek",
        inputs: &["key: int64", "indices: int32"],
        outputs: &["values: dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "OrderedMapUnstage",
        inputs: &["key: int64", "indices: int32"],
        outputs: &["values: dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "OrderedMapUnstageNoKey",
        inputs: &["indices: int32"],
        outputs: &["key: int64", "values: dtypes"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "OrderedMapSize",
        outputs: &["size: int32"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "OrderedMapIncompleteSize",
        outputs: &["size: int32"],
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "OrderedMapClear",
        attrs: &[
            "capacity: int >= 0 = 0",
            "memory_limit: int >= 0 = 0",
            "dtypes: list(type)",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];
