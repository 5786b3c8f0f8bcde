//! Workers over real connections: steps, links, exchange of tensors.

mod cluster;
mod exchange;
mod fusion;
mod links;
mod steps;
mod windows;
mod wire;
