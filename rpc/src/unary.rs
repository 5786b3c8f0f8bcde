//! Methods of one message either way, without what tonic puts around them.

use crate::call::{Answer, Call};
use crate::stream::PREFIX;
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tonic::Status;

/// Answers a call that [is plain](Call::is_plain).
pub async fn unary<Q, A, F>(call: Call, method: F) -> Answer
where
    Q: Message + Default,
    A: Message,
    F: AsyncFnOnce(Q) -> Result<A, Status>,
{
    let answered = async {
        let message = call.message().await?;
        let request = Q::decode(message).map_err(|e| {
            Status::internal(format!("malformed request: its message cannot be decoded: {e}"))
        })?;
        encode(&method(request).await?)
    };
    match answered.await {
        Ok(message) => Answer::Message([message, Bytes::new()]),
        Err(status) => Answer::Failure(status),
    }
}

/// The message behind gRPC's head.
fn encode(message: &impl Message) -> Result<Bytes, Status> {
    /// The format's own limit, bytes.
    const MOST: usize = i32::MAX as usize;
    let len = message.encoded_len();
    if len > MOST {
        return Err(Status::internal("Protobuf is too large to be serialized"));
    }
    let mut out = BytesMut::with_capacity(PREFIX + len);
    out.put_u8(0);
    out.put_u32(len as u32);
    message.encode(&mut out).map_err(|e| Status::internal(format!("the answer cannot be encoded: {e}")))?;
    Ok(out.freeze())
}
