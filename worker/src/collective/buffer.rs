//! RecvBuf, the call by which members of TensorFlow receive elements of a collective: its answer, and our own calls to
//! such members.

use crate::fetch::acknowledge;
use crate::peers::Peers;
use crate::rendezvous::to_error;
use crate::serve::receive;
use crate::worker::Worker;
use bytes::Bytes;
use device::rendezvous::{Receive, RendezvousKey, Sent};
use device::{Error, Value};
use graph::{Code, DType, DeviceName, Shape, Tensor};
use prost::Message;
use proto::channel::RetryPolicy;
use proto::google::protobuf::Any;
use proto::grpc::MAX_MESSAGE_SIZE;
use proto::remote::request_id;
use proto::service::WorkerServiceClient;
use proto::{Status, pb};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The type of the bytes in an answer.
const EXTRA: &str = "type.googleapis.com/tensorflow.RecvBufRespExtra";
/// The largest piece of an answer's bytes, as TensorFlow's servers send them.
const PIECE: usize = 4096;

/// Answers one RecvBuf call, once the member in this process has sent the elements.
///
/// # Errors
/// `FailedPrecondition` for an earlier incarnation of a device; `Internal` for another number of bytes than requested; the
/// step's own failure, marked as derived.
pub(crate) async fn recv_buf(
    worker: &Arc<Worker>,
    request: pb::RecvBufRequest,
) -> Result<pb::RecvBufResponse, Status> {
    worker.accept_receive(request.request_id, request.step_id)?;
    let device = worker.devices.find_local(&DeviceName::parse(&request.src_device)?)?;
    let incarnation = device.attributes().incarnation;
    if request.src_incarnation != 0 && request.src_incarnation != incarnation {
        let text = format!(
            "RecvBuf expects a different device incarnation: {} vs. {incarnation}. Your worker job (\"{}\") was \
             probably restarted. Check your worker job for the reason why it was restarted.",
            request.src_incarnation,
            worker.task()
        );
        return Err(Status::new(Code::FailedPrecondition, text));
    }
    let key = Arc::new(RendezvousKey {
        text: request.buf_rendezvous_key.as_str().into(),
        src_device: request.src_device.as_str().into(),
        src_incarnation: incarnation,
        dst_device: request.dst_device.as_str().into(),
        edge: request.buf_rendezvous_key.as_str().into(),
    });
    let wait = worker.steps.wait(request.step_id)?;
    let Sent { value: Value::Host(tensor), .. } = receive(worker, &wait, &key).await? else {
        return Err(Status::new(Code::Internal, format!("{} is no tensor in host memory", key.text)));
    };
    let bytes = tensor.bytes()?;
    if usize::try_from(request.num_bytes) != Ok(bytes.len()) {
        let text = format!(
            "RecvBuf {}: {} bytes are requested, but the member has sent {}",
            key.text,
            request.num_bytes,
            bytes.len()
        );
        return Err(Status::new(Code::Internal, text));
    }
    let bytes = Bytes::copy_from_slice(bytes);
    let pieces = (0..bytes.len()).step_by(PIECE).map(|at| bytes.slice(at..bytes.len().min(at + PIECE)));
    let extra = pb::RecvBufRespExtra { tensor_content: pieces.collect() };
    Ok(pb::RecvBufResponse {
        transport_options: Some(Any { type_url: EXTRA.into(), value: extra.encode_to_vec().into() }),
        ..Default::default()
    })
}

/// The calls by which one collective receives elements from members of TensorFlow. They end when this object is dropped.
#[derive(Debug)]
pub(super) struct BufferCalls {
    step_id: i64,
    peers: Arc<Peers>,
    runtime: Handle,
    ended: CancellationToken,
    _guard: DropGuard,
}

impl BufferCalls {
    pub(super) fn new(step_id: i64, peers: Arc<Peers>, runtime: Handle) -> BufferCalls {
        let ended = CancellationToken::new();
        BufferCalls { step_id, peers, runtime, _guard: ended.clone().drop_guard(), ended }
    }

    /// Requests elements from a member of TensorFlow, and passes them on as a vector.
    pub(super) fn receive(&self, key: &Arc<RendezvousKey>, dtype: DType, count: usize, receive: Receive) {
        let peer = match self.peers.source_of(key) {
            Ok(peer) => peer,
            Err(status) => return receive(Err(to_error(status))),
        };
        let length = count * dtype.size().unwrap_or(0);
        let request = pb::RecvBufRequest {
            step_id: self.step_id,
            buf_rendezvous_key: key.text.to_string(),
            num_bytes: length as i64,
            src_device: key.src_device.to_string(),
            dst_device: key.dst_device.to_string(),
            request_id: request_id(),
            src_incarnation: key.src_incarnation,
            client_locality: Some(pb::DeviceLocality::default()),
            server_locality: Some(pb::DeviceLocality::default()),
            ..Default::default()
        };
        let ended = self.ended.clone();
        self.runtime.spawn(async move {
            let call = peer.call("RecvBuf", RetryPolicy::Never, None, |channel| {
                let client = WorkerServiceClient::new(channel);
                let mut client = client
                    .max_decoding_message_size(MAX_MESSAGE_SIZE)
                    .max_encoding_message_size(MAX_MESSAGE_SIZE);
                let request = request.clone();
                async move { client.recv_buf(request).await }
            });
            let answer = tokio::select! {
                biased;
                () = ended.cancelled() => return,
                answer = call => answer,
            };
            let needs_ack = answer.as_ref().is_ok_and(|answer| answer.get_ref().require_ack);
            let tensor = answer.map_err(to_error).and_then(|answer| {
                let tensor = tensor_of(answer.into_inner(), dtype, count);
                tensor.map_err(|e| Error::internal(format!("RecvBuf from {}: {e}", peer.task())))
            });
            receive(tensor.map(|tensor| Sent { value: Value::Host(tensor), is_dead: false }));
            if needs_ack {
                acknowledge(&peer, request.request_id).await;
            }
        });
    }
}

/// Returns the elements in an answer to RecvBuf.
fn tensor_of(answer: pb::RecvBufResponse, dtype: DType, count: usize) -> device::Result<Tensor> {
    let extra = answer.transport_options.ok_or_else(|| Error::internal("the answer has no elements"))?;
    let extra = pb::RecvBufRespExtra::decode(&*extra.value)
        .map_err(|e| Error::internal(format!("the answer's elements cannot be decoded: {e}")))?;
    let mut tensor = Tensor::unspecified(dtype, Shape::new(&[count])?)?;
    let received: usize = extra.tensor_content.iter().map(Bytes::len).sum();
    let mut rest = tensor.bytes_mut()?;
    if received != rest.len() {
        return Err(Error::internal(format!("{received} bytes have arrived, not {}", rest.len())));
    }
    for piece in &extra.tensor_content {
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(piece.len());
        head.copy_from_slice(piece);
        rest = tail;
    }
    Ok(tensor)
}
