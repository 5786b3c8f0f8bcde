//! Send and Recv between partitions, and the arguments and results of functions.

use super::{Gradient, OpDef, Role, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "_Send",
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
    },
    OpDef {
        name: "_Recv",
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
    },
    OpDef {
        name: "_HostSend",
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
    },
    OpDef {
        name: "_HostRecv",
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
    },
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
