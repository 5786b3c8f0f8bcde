//! Builders of ops on strings.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Strings joined element by element.
    pub fn string_join(&self, inputs: &[Output], separator: &str) -> Output {
        self.op("StringJoin").input(inputs).attr("separator", separator).output()
    }

    /// Numbers as text.
    pub fn as_string(&self, input: Output) -> Output {
        self.op("AsString").input(input).output()
    }

    /// A bucket for each string, the same wherever it is computed.
    pub fn string_to_hash_bucket(&self, input: Output, buckets: i64) -> Output {
        self.op("StringToHashBucketFast").input(input).attr("num_buckets", buckets).output()
    }
}
