//! The source text and the documents: dependencies between crates, prose, links.

mod architecture;
mod documents;
mod prose;
#[path = "../support/mod.rs"]
mod support;
