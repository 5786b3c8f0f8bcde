//! The graph, its passes and its gradients, from text to text.

mod control_edges;
mod dot;
mod functions;
mod gradients;
mod lower;
mod passes;
mod simplify;
mod text;
