//! The gRPC codec of the generated clients and servers.
//!
//! prost's functions are generic over the buffer, so each crate that calls them compiles them again. For each
//! [`WireMessage`], they are compiled only once, in this crate.

use prost::Message;
use std::fmt;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// A request or response of a service.
pub trait WireMessage: Sized + Send + 'static {
    /// Appends the encoded message.
    ///
    /// # Errors
    /// `Internal` if the buffer has no room.
    fn write(&self, buffer: &mut EncodeBuf<'_>) -> Result<(), Status>;

    /// Decodes a message from the whole buffer.
    ///
    /// # Errors
    /// `Internal` if the bytes do not encode a message of this type.
    fn read(buffer: &mut DecodeBuf<'_>) -> Result<Self, Status>;
}

macro_rules! wire_messages {
    ($($message:path,)*) => { $(impl WireMessage for $message {
        #[inline(never)]
        fn write(&self, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
            self.encode(buffer).map_err(|error| Status::internal(error.to_string()))
        }

        #[inline(never)]
        fn read(buffer: &mut DecodeBuf<'_>) -> Result<Self, Status> {
            Self::decode(buffer).map_err(|error| Status::internal(error.to_string()))
        }
    })* };
}

include!("generated/wire_messages.rs");

// The reply of a debugger. Kernels encode the events to which it replies.
wire_messages! { crate::pb::EventReply, }

/// Encodes messages of type `T` and decodes messages of type `U`.
pub struct MessageCodec<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> Default for MessageCodec<T, U> {
    fn default() -> MessageCodec<T, U> {
        MessageCodec(PhantomData)
    }
}

impl<T, U> fmt::Debug for MessageCodec<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MessageCodec")
    }
}

impl<T: WireMessage, U: WireMessage> Codec for MessageCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = MessageCodec<T, U>;
    type Decoder = MessageCodec<T, U>;

    fn encoder(&mut self) -> MessageCodec<T, U> {
        MessageCodec::default()
    }

    fn decoder(&mut self) -> MessageCodec<T, U> {
        MessageCodec::default()
    }
}

impl<T: WireMessage, U> Encoder for MessageCodec<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.write(buffer)
    }
}

impl<T, U: WireMessage> Decoder for MessageCodec<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::read(buffer).map(Some)
    }
}
