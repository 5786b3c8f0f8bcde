//! Tests of workers over real connections: steps, links and transfers of tensors.

mod cluster;
mod collectives;
mod device_collectives;
mod exchange;
mod fabric;
mod fusion;
mod links;
mod peer_buffers;
mod steps;
mod wire;
