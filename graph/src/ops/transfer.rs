//! Send and Recv between partitions, and the arguments and results of functions.

use super::{Gradient, OpDef, Role, Traits};

/// Sends a tensor to a Recv of the same step with equal attributes, perhaps on another device.
const SEND: OpDef = OpDef {
    inputs: &["tensor: T"],
    attrs: &[
        "T: type",
        "tensor_name: string",
        "send_device: string",
        "send_device_incarnation: int",
        "recv_device: string",
        "client_terminated: bool = false",
    ],
    gradient: Gradient::Leaf,
    role: Role::Send,
    traits: Traits::STATEFUL,
    ..OpDef::NEW
};

const RECV: OpDef = OpDef {
    outputs: &["tensor: tensor_type"],
    attrs: &[
        "tensor_type: type",
        "tensor_name: string",
        "send_device: string",
        "send_device_incarnation: int",
        "recv_device: string",
        "client_terminated: bool = false",
    ],
    gradient: Gradient::Leaf,
    role: Role::Recv,
    traits: Traits::STATEFUL,
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    // The ops of clients' graphs; the master adds those whose names begin with an underscore.
    OpDef { name: "Send", ..SEND },
    OpDef { name: "Recv", ..RECV },
    OpDef { name: "_Send", ..SEND },
    OpDef { name: "_Recv", ..RECV },
    OpDef { name: "_HostSend", ..SEND },
    OpDef { name: "_HostRecv", ..RECV },
    OpDef {
        name: "_Arg",
        outputs: &["output: T"],
        attrs: &["T: type", "index: int >= 0"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "_Retval",
        inputs: &["input: T"],
        attrs: &["T: type", "index: int >= 0"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];
