//! Builders of ops on files.

use super::Scope;
use crate::graph::{NodeId, Output};

impl Scope {
    /// The contents of a file.
    pub fn read_file(&self, name: Output) -> Output {
        self.op("ReadFile").input(name).output()
    }

    /// Writes a file, in folders that are made where they are missing.
    pub fn write_file(&self, name: Output, contents: Output) -> NodeId {
        self.op("WriteFile").input(name).input(contents).node()
    }

    /// The files whose names match a pattern, or one of several, sorted.
    pub fn matching_files(&self, pattern: Output) -> Output {
        self.op("MatchingFiles").input(pattern).output()
    }
}
