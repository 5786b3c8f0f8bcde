//! Conversions between messages and the types of `graph`, one file for each topic. Every size in a message is
//! checked against its contents and against a [`Budget`] before memory is allocated.

mod attr;
mod budget;
mod device;
mod function;
mod graph;
mod message;
mod shape;
mod status;
mod tensor;
mod variant;
pub mod worker;

pub use attr::{attr_from_proto, attr_to_proto, dtype_from_proto, func_from_proto, func_to_proto};
pub use budget::Budget;
pub use device::{device_from_proto, device_to_proto, devices_from_proto, devices_to_proto};
pub use graph::{
    DefaultAttrs, GRAPH_DEF_VERSION, extend_graph, graph_from_bytes, graph_from_proto, graph_to_bytes,
    graph_to_proto, new_nodes_to_bytes,
};
pub use shape::{partial_shape_from_proto, partial_shape_to_proto, shape_from_proto, shape_to_proto};
pub use status::failure_in_body;
pub use tensor::{
    named_tensor_from_proto, named_tensor_to_proto, tensor_from_proto, tensor_from_proto_within,
    tensor_to_proto,
};
