//! Tensors that stay on a server between the steps of a session, accessed by handle.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "GetSessionHandle",
        inputs: &["value: T"],
        outputs: &["handle: string"],
        attrs: &["T: type"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "GetSessionHandleV2",
        inputs: &["value: T"],
        outputs: &["handle: resource"],
        attrs: &["T: type"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "GetSessionTensor",
        inputs: &["handle: string"],
        outputs: &["value: dtype"],
        attrs: &["dtype: type"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeleteSessionTensor",
        inputs: &["handle: string"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];
