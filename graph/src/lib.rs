//! The dataflow graph as a data structure: nodes, element types, host tensors, device names, the op table, shape
//! inference, the graph builder, gradients and passes. This crate executes nothing.
#![forbid(unsafe_code)]

mod assemble;
pub mod attr;
mod bucket_place;
pub mod builder;
pub mod device;
mod dot;
mod dtype;
mod error;
pub mod fingerprint;
pub mod function;
mod gradients;
mod graph;
mod import;
pub mod infer;
mod node;
pub mod ops;
mod origin;
pub mod passes;
mod reduction_place;
mod rendezvous_key;
pub mod shape;
pub mod tensor;
mod text;
mod topology;
mod unavailable;

pub use assemble::Edge;
pub use attr::{AttrList, AttrValue, Attrs, FuncAttr};
pub use bucket_place::BucketPlace;
pub use builder::{Forward, Scope, WhileOptions};
pub use device::{DeviceAttributes, DeviceName, DeviceSpec, TaskName};
pub use dtype::{Bool8, DType, Element, PortType, REF_OFFSET};
pub use error::{Code, Error, Result};
pub use function::{FunctionDef, FunctionLibrary};
pub use gradients::{GradientOptions, gradients, gradients_with};
pub use graph::{CONTROL, Consumer, Graph, NodeId, Output, Versions};
pub use import::{Importer, parse_output_name};
pub use infer::Shapes;
pub use node::Node;
pub use ops::{Op, OpDef, Role};
pub use origin::RecvOrigin;
pub use reduction_place::ReductionPlace;
pub use rendezvous_key::RendezvousKey;
pub use shape::{Dim, PartialShape, Shape};
pub use tensor::{Buffer, Optional, ResourceHandle, Tensor, TensorList, TensorMap, Variant, VariantObject};
pub use topology::{Producer, Topology};
pub use unavailable::Unavailable;
