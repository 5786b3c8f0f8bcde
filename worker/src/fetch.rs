//! The receiving end of RecvTensor: a call to the task that has the tensor.

use crate::reply::{Reply, ReplyReader};
use bytes::{BufMut, Bytes, BytesMut};
use device::rendezvous::RendezvousKey;
use http::header::{CONTENT_TYPE, HeaderValue, TE};
use http_body_util::{BodyExt, Full};
use prost::Message;
use proto::channel::{Peer, RetryPolicy};
use proto::deadline::{TIMEOUT, to_timeout};
use proto::grpc::PREFIX;
use proto::service::WorkerServiceClient;
use proto::{Status, pb};
use std::time::{Duration, Instant};
use tonic::body::Body;
use tonic::transport::Channel;
use tower_service::Service;

/// The HTTP/2 path of the RecvTensor method.
pub(crate) const RECV_TENSOR: &str = "/tensorflow.WorkerService/RecvTensor";

/// Time limit of the call that acknowledges a reply.
const RECEIPT_DEADLINE: Duration = Duration::from_secs(10);

/// Fetches the value sent under `key`, waiting until the peer has sent it.
///
/// # Errors
/// The sender's failure, or a transport failure that names the task and its address. A call whose outcome is
/// unknown is not repeated, because the value may have been in the lost answer.
pub(crate) async fn fetch(
    peer: &Peer,
    request_id: i64,
    step_id: i64,
    key: &RendezvousKey,
    deadline: Option<Instant>,
) -> Result<Reply, Status> {
    let request = pb::RecvTensorRequest {
        step_id,
        rendezvous_key: key.text.to_string(),
        request_id,
        ..Default::default()
    };
    let frame = frame(&request);
    peer.call("RecvTensor", RetryPolicy::Never, deadline, |channel| {
        exchange(channel, frame.clone(), deadline)
    })
    .await?
}

/// Tells the sender that the reply to request `request_id` has arrived. Without this acknowledgement, a
/// sender that retains the reply does so until the step is cleaned up.
pub(crate) async fn acknowledge(peer: &Peer, request_id: i64) {
    let receipt = pb::MarkRecvFinishedRequest { request_id };
    let send = |channel| async move { WorkerServiceClient::new(channel).mark_recv_finished(receipt).await };
    let deadline = Some(Instant::now() + RECEIPT_DEADLINE);
    let _ = peer.call("MarkRecvFinished", RetryPolicy::Never, deadline, send).await;
}

/// Returns the encoded request, preceded by gRPC's message header of five bytes.
fn frame(request: &pb::RecvTensorRequest) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + request.encoded_len());
    frame.put_u8(0);
    frame.put_u32(request.encoded_len() as u32);
    frame.put_slice(&request.encode_to_vec());
    frame.freeze()
}

/// Performs one RecvTensor call. The outer error is a failure of the transport or the sender; the inner error is that
/// of a reply that cannot be decoded.
async fn exchange(
    mut channel: Channel,
    frame: Bytes,
    deadline: Option<Instant>,
) -> Result<Result<Reply, Status>, tonic::Status> {
    let mut request = http::Request::new(Body::new(Full::new(frame)));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::from_static(RECV_TENSOR);
    *request.version_mut() = http::Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    if let Some(deadline) = deadline {
        headers.insert(TIMEOUT, to_timeout(deadline.saturating_duration_since(Instant::now())));
    }
    let transport = |e: tonic::transport::Error| tonic::Status::from_error(Box::new(e));
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(transport)?;
    let response = channel.call(request).await.map_err(transport)?;
    let (parts, mut body) = response.into_parts();
    if parts.status != http::StatusCode::OK {
        return Err(tonic::Status::unavailable(format!("HTTP status {}", parts.status)));
    }
    check(&parts.headers)?;
    let mut reader = ReplyReader::default();
    let mut ended = parts.headers.contains_key("grpc-status");
    while let Some(next) = body.frame().await {
        match next?.into_data() {
            Ok(chunk) => {
                if let Err(unreadable) = reader.push(chunk) {
                    return Ok(Err(unreadable));
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    check(&trailers)?;
                    ended = true;
                }
            }
        }
    }
    if !ended {
        return Err(tonic::Status::unavailable("the answer ended without a status"));
    }
    Ok(reader.finish())
}

/// Fails with the error in the header fields or trailers of an answer, if they contain one.
fn check(headers: &http::HeaderMap) -> Result<(), tonic::Status> {
    match tonic::Status::from_header_map(headers) {
        Some(status) if status.code() != tonic::Code::Ok => Err(status),
        _ => Ok(()),
    }
}
