//! The server side of gRPC: calls over HTTP/2 (RFC 9113), with few layers between the socket and the service.
//! The thread that reads a call from its connection also begins it, and the thread that completes the answer
//! writes it with one system call.
//!
//! Services that tonic generates can be served unchanged; a service that needs lower latency decodes the
//! messages itself.

#![forbid(unsafe_code)]

mod call;
mod connection;
mod frame;
mod hpack;
pub mod inline_task;
mod outbox;
mod server;
mod state;
mod stream;

pub use call::{Answer, Call};
pub use server::{Service, Services};
