//! Builders of ops on files.

use super::Scope;
use crate::graph::{NodeId, Output};

impl Scope {
    /// Returns the contents of a file.
    pub fn read_file(&self, name: Output) -> Output {
        self.op("ReadFile").input(name).output()
    }

    /// Writes a file, and creates missing folders.
    pub fn write_file(&self, name: Output, contents: Output) -> NodeId {
        self.op("WriteFile").input(name).input(contents).node()
    }

    /// Returns the names of the files that match one of the patterns, sorted.
    pub fn matching_files(&self, pattern: Output) -> Output {
        self.op("MatchingFiles").input(pattern).output()
    }
}
