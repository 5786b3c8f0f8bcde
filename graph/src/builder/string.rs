//! Builders of ops on strings.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Joins strings element by element.
    pub fn string_join(&self, inputs: &[Output], separator: &str) -> Output {
        self.op("StringJoin").input(inputs).attr("separator", separator).output()
    }

    /// Converts numbers to text.
    pub fn as_string(&self, input: Output) -> Output {
        self.op("AsString").input(input).output()
    }

    /// Returns a hash bucket for each string, which is the same in every process.
    pub fn string_to_hash_bucket(&self, input: Output, buckets: i64) -> Output {
        self.op("StringToHashBucketFast").input(input).attr("num_buckets", buckets).output()
    }
}
