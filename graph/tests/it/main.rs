//! Tests of the graph, its passes and its gradients, on graphs in the text format.

mod control_edges;
mod dot;
mod functions;
mod gradients;
mod lower;
mod passes;
mod simplify;
mod text;
