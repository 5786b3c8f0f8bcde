//! Mutexes: mutual exclusion between steps.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "MutexV2",
        outputs: &["resource: resource"],
        attrs: &["container: string = ''", "shared_name: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MutexLock",
        inputs: &["mutex: resource"],
        outputs: &["mutex_lock: variant"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ConsumeMutexLock",
        inputs: &["mutex_lock: variant"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];
