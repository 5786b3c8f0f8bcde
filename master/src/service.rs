//! The gRPC server of MasterService. RunStep and RunCallable bypass the generated service, whose HTTP layers
//! cost time; all other calls use the generated service.

use crate::handler::Handler;
use crate::master::Master;
use futures::future::BoxFuture;
use proto::grpc::MAX_MESSAGE_SIZE;
use proto::service::MasterServiceServer;
use proto::{deadline, pieces};
use rpc::{Answer, Call, Service};
use std::sync::Arc;
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService;

const RUN_STEP: &str = "/tensorflow.MasterService/RunStep";
const RUN_CALLABLE: &str = "/tensorflow.MasterService/RunCallable";

/// A master as a gRPC service.
#[derive(Clone, Debug)]
pub struct MasterRpc {
    handler: Handler,
    generated: MasterServiceServer<Handler>,
}

impl MasterRpc {
    /// Returns the service of a master.
    pub fn new(master: Arc<Master>) -> MasterRpc {
        let handler = Handler { master };
        let generated = MasterServiceServer::new(handler.clone())
            .max_decoding_message_size(MAX_MESSAGE_SIZE)
            .max_encoding_message_size(MAX_MESSAGE_SIZE)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate);
        MasterRpc { handler, generated }
    }
}

impl NamedService for MasterRpc {
    const NAME: &'static str = <MasterServiceServer<Handler> as NamedService>::NAME;
}

impl Service for MasterRpc {
    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        let handler = self.handler.clone();
        let deadline = call.field(deadline::TIMEOUT).and_then(deadline::of_timeout);
        match call.path() {
            RUN_STEP if call.is_plain() => answered(async move {
                let response = handler.answer_step(call.message().await?, deadline).await?;
                Ok(Answer::Message(pieces::encode_step(response)?))
            }),
            RUN_CALLABLE if call.is_plain() => answered(async move {
                let response = handler.answer_callable(call.message().await?, deadline).await?;
                Ok(Answer::Message(pieces::encode_callable(response)?))
            }),
            _ => Service::call(&self.generated, call),
        }
    }
}

/// Boxes the future of an answer, and converts its error to [`Answer::Failure`].
fn answered(
    answer: impl Future<Output = Result<Answer, tonic::Status>> + Send + 'static,
) -> BoxFuture<'static, Answer> {
    Box::pin(async { answer.await.unwrap_or_else(Answer::Failure) })
}
