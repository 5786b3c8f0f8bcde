//! Calls to a server with the protocol's own messages, valid or not, and helpers that build graphs as messages.

use super::Fallible;
use super::cluster::Cluster;
use anabranch::graph::{Graph, Tensor};
use anabranch::proto::convert::{DefaultAttrs, graph_to_proto, tensor_from_proto, tensor_to_proto};
use anabranch::proto::pb;
use anabranch::proto::service::{MasterServiceClient, WorkerServiceClient};
use prost::Message;
use prost::bytes::{self, Buf, BufMut};
use std::time::Duration;
use tonic::Code;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};

/// Longest time that a call may take.
pub const LONG: Duration = Duration::from_secs(30);

/// The result of a call.
pub type Reply<T> = Result<T, tonic::Status>;

/// Clients of the master service and the worker service of one task.
#[derive(Clone, Debug)]
pub struct Rpc {
    pub channel: Channel,
    pub master: MasterServiceClient<Channel>,
    pub worker: WorkerServiceClient<Channel>,
}

impl Rpc {
    /// Connects to a task of the cluster.
    pub async fn connect(cluster: &Cluster, job: &str, index: usize) -> Fallible<Rpc> {
        let address = format!("http://{}", cluster.address(job, index));
        let channel = Endpoint::from_shared(address)?.timeout(LONG).connect().await?;
        let (master, worker) =
            (MasterServiceClient::new(channel.clone()), WorkerServiceClient::new(channel.clone()));
        Ok(Rpc { channel, master, worker })
    }

    /// Creates a session with a graph and returns its handle.
    pub async fn create_session(&self, graph: pb::GraphDef) -> Reply<String> {
        let request = pb::CreateSessionRequest { graph_def: bytes(&graph), ..Default::default() };
        Ok(self.master.clone().create_session(request).await?.into_inner().session_handle)
    }

    /// Closes a session by its handle.
    pub async fn close_session(&self, session: &str) -> Reply<()> {
        let request = pb::CloseSessionRequest { session_handle: session.to_owned() };
        self.master.clone().close_session(request).await.map(drop)
    }

    /// Runs a step; a failure in the response's body becomes the error of the call.
    pub async fn run_step(&self, request: pb::RunStepRequest) -> Reply<Vec<pb::NamedTensorProto>> {
        let reply = self.master.clone().run_step(request).await?.into_inner();
        match reply.status_code {
            0 => Ok(reply.tensor),
            code => Err(tonic::Status::new(Code::from_i32(code), reply.status_error_message)),
        }
    }

    /// Checks that the server still works: creates a session, runs a step and closes the session.
    pub async fn check_health(&self) -> Fallible {
        let sum = def([constant("a", 40.0), constant("b", 2.0), binary("sum", "AddV2", "a", "b")]);
        let session = self.create_session(sum).await?;
        let fetched = self.run_step(step(&session, &[], &["sum:0"], &[])).await?;
        let value = fetched.into_iter().next().and_then(|t| t.tensor).ok_or("nothing was fetched")?;
        assert_eq!(tensor_from_proto(value)?.item::<f32>()?, 42.0);
        self.close_session(&session).await?;
        Ok(())
    }

    /// Makes one call with arbitrary bytes as its message.
    pub async fn call_bytes(&self, path: &'static str, message: &[u8]) -> Reply<Vec<u8>> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.map_err(|e| tonic::Status::unavailable(e.to_string()))?;
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
        let reply = client.unary(tonic::Request::new(message.to_vec()), path, Bytes).await?;
        Ok(reply.into_inner())
    }
}

/// A codec that sends and receives messages as raw bytes.
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Bytes;
    type Decoder = Bytes;

    fn encoder(&mut self) -> Bytes {
        Bytes
    }

    fn decoder(&mut self) -> Bytes {
        Bytes
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, tonic::Status> {
        let mut bytes = vec![0; from.remaining()];
        from.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}

/// Returns the request that runs a step of a session.
pub fn step(
    session: &str,
    feeds: &[(&str, Tensor)],
    fetches: &[&str],
    targets: &[&str],
) -> pb::RunStepRequest {
    let feed = |(name, value): &(&str, Tensor)| pb::NamedTensorProto {
        name: (*name).to_owned(),
        tensor: Some(tensor_to_proto(value)),
    };
    pb::RunStepRequest {
        session_handle: session.to_owned(),
        feed: feeds.iter().map(feed).collect(),
        fetch: fetches.iter().map(|f| (*f).to_owned()).collect(),
        target: targets.iter().map(|t| (*t).to_owned()).collect(),
        ..Default::default()
    }
}

/// Returns the request with `store_errors_in_response_body` set, so that the server reports a failure in the
/// response's body.
pub fn in_body(step: pb::RunStepRequest) -> pb::RunStepRequest {
    pb::RunStepRequest { store_errors_in_response_body: true, ..step }
}

/// Returns a graph message with the nodes `node`.
pub fn def(node: impl Into<Vec<pb::NodeDef>>) -> pb::GraphDef {
    pb::GraphDef { node: node.into(), ..Default::default() }
}

/// Encodes a graph for a request, where it is a field of bytes.
pub fn bytes(graph: &pb::GraphDef) -> bytes::Bytes {
    graph.encode_to_vec().into()
}

/// Converts a graph to a GraphDef message.
pub fn proto(graph: &Graph) -> Fallible<pb::GraphDef> {
    Ok(graph_to_proto(graph, DefaultAttrs::Keep)?)
}

/// Returns the message of a node.
pub fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, pb::AttrValue)]) -> pb::NodeDef {
    pb::NodeDef {
        name: name.to_owned(),
        op: op.to_owned(),
        input: inputs.iter().map(|i| (*i).to_owned()).collect(),
        attr: attrs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        ..Default::default()
    }
}

/// Returns the node with its device set to `device`.
pub fn on(device: &str, node: pb::NodeDef) -> pb::NodeDef {
    pb::NodeDef { device: device.to_owned(), ..node }
}

/// Returns an attribute that holds `value`.
pub fn attr(value: pb::attr_value::Value) -> pb::AttrValue {
    pb::AttrValue { value: Some(value) }
}

/// Returns an attribute that holds a type.
pub fn dtype(dtype: pb::DataType) -> pb::AttrValue {
    attr(pb::attr_value::Value::Type(dtype as i32))
}

/// Returns an attribute that holds a string.
pub fn text(text: &str) -> pb::AttrValue {
    attr(pb::attr_value::Value::S(text.as_bytes().to_vec()))
}

/// Returns an attribute that holds an integer.
pub fn int(value: i64) -> pb::AttrValue {
    attr(pb::attr_value::Value::I(value))
}

/// Returns a shape; the sizes may be invalid.
pub fn shape(dims: &[i64]) -> pb::TensorShapeProto {
    let dim = dims.iter().map(|&size| pb::tensor_shape_proto::Dim { size, ..Default::default() });
    pb::TensorShapeProto { dim: dim.collect(), ..Default::default() }
}

/// Returns a float constant whose message has the shape `dims` and a single value, 1, for all elements.
pub fn splat(name: &str, dims: &[i64]) -> pb::NodeDef {
    let value = pb::TensorProto {
        dtype: pb::DataType::DtFloat as i32,
        tensor_shape: Some(shape(dims)),
        float_val: vec![1.0],
        ..Default::default()
    };
    node(
        name,
        "Const",
        &[],
        &[("dtype", dtype(pb::DataType::DtFloat)), ("value", attr(pb::attr_value::Value::Tensor(value)))],
    )
}

/// Returns a constant that is a float scalar.
pub fn constant(name: &str, value: f32) -> pb::NodeDef {
    tensor(name, &Tensor::scalar(value))
}

/// Returns a constant with the value of a tensor.
pub fn tensor(name: &str, value: &Tensor) -> pb::NodeDef {
    let element = attr(pb::attr_value::Value::Type(value.dtype().number()));
    let value = attr(pb::attr_value::Value::Tensor(tensor_to_proto(value)));
    node(name, "Const", &[], &[("dtype", element), ("value", value)])
}

/// Returns a float placeholder.
pub fn placeholder(name: &str) -> pb::NodeDef {
    node(name, "Placeholder", &[], &[("dtype", dtype(pb::DataType::DtFloat))])
}

/// Returns a float node with one input.
pub fn unary(name: &str, op: &str, x: &str) -> pb::NodeDef {
    node(name, op, &[x], &[("T", dtype(pb::DataType::DtFloat))])
}

/// Returns a float node with two inputs.
pub fn binary(name: &str, op: &str, x: &str, y: &str) -> pb::NodeDef {
    node(name, op, &[x, y], &[("T", dtype(pb::DataType::DtFloat))])
}

/// Returns a `_Recv` on `device` of a tensor that is never sent, so it waits until its step is cancelled.
pub fn endless(name: &str, device: &str) -> pb::NodeDef {
    let attrs = [
        ("tensor_type", dtype(pb::DataType::DtFloat)),
        ("tensor_name", text("never sent")),
        ("send_device", text(device)),
        ("send_device_incarnation", int(1)),
        ("recv_device", text(device)),
    ];
    on(device, node(name, "_Recv", &[], &attrs))
}

/// Asserts that a call failed with `code` and a message that contains all of `parts`; returns the message.
pub fn assert_fails<T: std::fmt::Debug>(reply: Reply<T>, code: Code, parts: &[&str]) -> String {
    match reply {
        Ok(value) => panic!("{code:?} was expected, got {value:?}"),
        Err(status) => {
            assert_eq!(status.code(), code, "{}", status.message());
            for part in parts {
                assert!(status.message().contains(part), "'{part}' is not in: {}", status.message());
            }
            status.message().to_owned()
        }
    }
}
