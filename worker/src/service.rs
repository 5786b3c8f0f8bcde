//! WorkerService for a gRPC server. RecvTensor is taken out before the generated service, which would copy each
//! tensor into a message; all else passes through.

use crate::fetch::RECV_TENSOR;
use crate::handler::Handler;
use crate::serve::recv_tensor;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Limited};
use prost::Message;
use proto::grpc::MAX_MESSAGE_SIZE;
use proto::pb::RecvTensorRequest;
use proto::service::WorkerServiceServer;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService;
use tower_service::Service;

/// Largest request for a tensor, bytes: it is little more than a key.
const MAX_REQUEST: usize = 1 << 20;

/// A worker as a tower service, to be added to a server's router.
#[derive(Clone, Debug)]
pub struct WorkerRpc {
    handler: Handler,
    generated: WorkerServiceServer<Handler>,
}

impl WorkerRpc {
    pub(crate) fn new(handler: Handler) -> WorkerRpc {
        let generated = WorkerServiceServer::new(handler.clone())
            .max_decoding_message_size(MAX_MESSAGE_SIZE)
            .max_encoding_message_size(MAX_MESSAGE_SIZE)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate);
        WorkerRpc { handler, generated }
    }
}

impl NamedService for WorkerRpc {
    const NAME: &'static str = <WorkerServiceServer<Handler> as NamedService>::NAME;
}

impl Service<Request<Body>> for WorkerRpc {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let encoding = request.headers().get("grpc-encoding");
        let is_plain = encoding.is_none_or(|e| e.as_bytes() == b"identity");
        if request.uri().path() != RECV_TENSOR || !is_plain {
            return Box::pin(self.generated.call(request));
        }
        let handler = self.handler.clone();
        Box::pin(async move { Ok(answer(handler, request).await.unwrap_or_else(tonic::Status::into_http)) })
    }
}

async fn answer(handler: Handler, request: Request<Body>) -> Result<Response<Body>, tonic::Status> {
    let request = read(request.into_body()).await?;
    let (head, elements) = recv_tensor(&handler.worker, request).await?.encode()?;
    let body = ReplyBody { head: Some(head), elements, trailers: Some(ok_trailers()) };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

async fn read(body: Body) -> Result<RecvTensorRequest, tonic::Status> {
    let unreadable = |what: String| tonic::Status::internal(format!("malformed RecvTensor request: {what}"));
    let read = Limited::new(body, MAX_REQUEST).collect().await;
    let bytes = read.map_err(|e| unreadable(e.to_string()))?.to_bytes();
    match bytes.split_first_chunk::<5>() {
        Some(([0, len @ ..], message)) if message.len() == u32::from_be_bytes(*len) as usize => {
            RecvTensorRequest::decode(message).map_err(|e| unreadable(e.to_string()))
        }
        _ => Err(unreadable("no single whole message".into())),
    }
}

fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers
}

/// A reply in its slices, then the status.
struct ReplyBody {
    head: Option<Bytes>,
    elements: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let data = self.head.take().or_else(|| self.elements.take());
        let frame = data.map(Frame::data).or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none()
    }
}
