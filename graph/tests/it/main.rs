//! The graph, its passes and its gradients, from text to text.

mod dot;
mod functions;
mod gradients;
mod lower;
mod passes;
mod simplify;
mod text;
mod untie;
