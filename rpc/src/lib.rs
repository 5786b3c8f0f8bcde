//! The server's side of gRPC: calls over HTTP/2 (RFC 9113), with little between a socket and who answers. A call is
//! begun on the thread that read it, and its answer leaves by one write of the thread that has it.
//!
//! Services that tonic generates are served as they are; one that is in a hurry takes messages out before.

#![forbid(unsafe_code)]

pub mod afterwards;
mod call;
mod connection;
pub mod errand;
mod frame;
mod hpack;
mod outbox;
mod server;
mod state;
mod stream;

pub use call::{Answer, Call};
pub use server::{Service, Services};
