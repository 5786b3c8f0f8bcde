//! WorkerService on the wire. RecvTensor is handled here, because the generated service would copy each
//! tensor into a message; all other methods go to the generated service.

use crate::fetch::RECV_TENSOR;
use crate::handler::Handler;
use crate::serve::recv_tensor;
use futures::future::BoxFuture;
use proto::grpc::MAX_MESSAGE_SIZE;
use proto::service::WorkerServiceServer;
use rpc::{Answer, Call, Service};
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService;

/// The gRPC service of a worker: every method of TensorFlow's WorkerService.
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

impl Service for WorkerRpc {
    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        if call.path() != RECV_TENSOR || !call.is_plain() {
            return Service::call(&self.generated, call);
        }
        let handler = self.handler.clone();
        Box::pin(async move { send_tensor(handler, call).await.unwrap_or_else(Answer::Failure) })
    }
}

/// Answers an uncompressed RecvTensor call.
async fn send_tensor(handler: Handler, call: Call) -> Result<Answer, tonic::Status> {
    let (head, elements) = recv_tensor(&handler.worker, call.message().await?).await?.encode()?;
    Ok(Answer::Message([Some(head), elements].into_iter().flatten().collect()))
}
