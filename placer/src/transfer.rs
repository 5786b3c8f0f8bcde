//! Builders of Send and Recv nodes, whose attributes give both ends the same rendezvous key.

use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use graph::{AttrValue, Attrs, DType, Node, Op, Role, Shape, Tensor, ops};
use std::sync::Arc;

/// The rendezvous key of a transfer, without its dtype.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// Name of the edge in the rendezvous key.
    pub(crate) tensor_name: AttrValue,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// Ops, attribute names and device names that all transfers of one pass share.
pub(crate) struct Transfers {
    send: &'static Op,
    recv: &'static Op,
    constant: &'static Op,
    identity: &'static Op,
    names: AttrNames,
    devices: Vec<(Arc<str>, AttrValue, AttrValue)>,
    empty_constant: Tensor,
}

/// Interned names of attributes.
struct AttrNames {
    send_type: Arc<str>,
    recv_type: Arc<str>,
    tensor_name: Arc<str>,
    send_device: Arc<str>,
    incarnation: Arc<str>,
    recv_device: Arc<str>,
    client_terminated: Arc<str>,
    dtype: Arc<str>,
    value: Arc<str>,
}

impl Transfers {
    pub(crate) fn new(devices: &DeviceSet) -> Result<Transfers> {
        let op = |name| {
            ops::lookup(name)
                .ok_or_else(|| Error::Graph(graph::Error::unimplemented(format!("op '{name}' is not there"))))
        };
        Ok(Transfers {
            send: op("_Send")?,
            recv: op("_Recv")?,
            constant: op("Const")?,
            identity: op("Identity")?,
            names: AttrNames {
                send_type: "T".into(),
                recv_type: "tensor_type".into(),
                tensor_name: "tensor_name".into(),
                send_device: "send_device".into(),
                incarnation: "send_device_incarnation".into(),
                recv_device: "recv_device".into(),
                client_terminated: "client_terminated".into(),
                dtype: "dtype".into(),
                value: "value".into(),
            },
            devices: devices
                .iter()
                .map(|d| (d.text.clone(), (&*d.text).into(), AttrValue::Int(d.incarnation as i64)))
                .collect(),
            empty_constant: Tensor::zeros(DType::Float, Shape::new(&[0])?)?,
        })
    }

    fn attrs(&self, key: &Key, type_name: &Arc<str>, dtype: DType, client: bool) -> Attrs {
        let names = &self.names;
        let (_, from, incarnation) = &self.devices[key.from as usize];
        let (_, to, _) = &self.devices[key.to as usize];
        let always = [
            (type_name.clone(), AttrValue::Type(dtype)),
            (names.recv_device.clone(), to.clone()),
            (names.send_device.clone(), from.clone()),
            (names.incarnation.clone(), incarnation.clone()),
            (names.tensor_name.clone(), key.tensor_name.clone()),
        ];
        // `client_terminated` is left out if it is false, which is its default value.
        let flag = client.then(|| (names.client_terminated.clone(), AttrValue::Bool(true)));
        always.into_iter().chain(flag).collect()
    }

    fn node(&self, name: String, op: &'static Op, device: u32, attrs: Attrs) -> Node {
        Node { name: name.into(), op, device: self.devices[device as usize].0.clone(), attrs, opaque: None }
    }

    /// Builds the Send of a transfer. `client` is set if the step's caller receives the tensor.
    pub(crate) fn send(&self, name: String, key: &Key, dtype: DType, client: bool) -> Node {
        self.node(name, self.send, key.from, self.attrs(key, &self.names.send_type, dtype, client))
    }

    /// Builds the Recv of a transfer. `client` is set if the step's caller sends the tensor.
    pub(crate) fn recv(&self, name: String, key: &Key, dtype: DType, client: bool) -> Node {
        self.node(name, self.recv, key.to, self.attrs(key, &self.names.recv_type, dtype, client))
    }

    /// Returns whether a node is the Recv of a feed.
    pub(crate) fn is_feed(&self, node: &Node) -> bool {
        let is_fed = node.attrs.get(&self.names.client_terminated);
        node.op.role() == Role::Recv && matches!(is_fed, Some(AttrValue::Bool(true)))
    }

    /// Builds the empty constant that is sent for a control edge.
    pub(crate) fn empty_constant(&self, name: String, device: u32) -> Node {
        let attrs = [
            (self.names.dtype.clone(), AttrValue::Type(DType::Float)),
            (self.names.value.clone(), AttrValue::Tensor(self.empty_constant.clone())),
        ];
        self.node(name, self.constant, device, attrs.into_iter().collect())
    }

    /// Builds the Identity that is the source of a control edge in the receiving partition.
    pub(crate) fn control_arrival(&self, name: String, device: u32) -> Node {
        let attrs = [(self.names.send_type.clone(), AttrValue::Type(DType::Float))];
        self.node(name, self.identity, device, attrs.into_iter().collect())
    }
}
