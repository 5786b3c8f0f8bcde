//! Workers over real connections: steps, links, exchange of tensors.

mod cluster;
mod exchange;
mod fusion;
mod links;
mod peer_buffers;
mod steps;
mod wire;
