//! The dataset of the names of files that match patterns.

use super::state::{ExchangedState, StateExchange};
use super::transform::{dataset, from_state};
use super::{Dataset, ElementSpec, Pull, UNKNOWN};
use bytes::Bytes;
use checkpoint::store;
use device::{Error, Result};
use graph::{Code, DType, Tensor};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// The state of an iterator over the files that match several patterns.
struct MatchingState {
    /// The index of the pattern that follows the current one.
    next: usize,
    /// The files of the current pattern that have not been returned.
    found: VecDeque<Bytes>,
    has_found: bool,
}

impl ExchangedState for MatchingState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.next)?;
        exchange.value(&mut self.found)?;
        exchange.value(&mut self.has_found)
    }
}

/// Returns the dataset of the files that match each pattern, sorted by name; folders are left out. A file occurs once
/// for each pattern that it matches.
pub(crate) fn matching_files(patterns: Vec<Bytes>) -> Result<Arc<Dataset>> {
    let patterns: Arc<[Bytes]> = patterns.into();
    dataset("MatchingFiles", ElementSpec::scalars(&[DType::String]), UNKNOWN, &[], move |_| {
        let patterns = patterns.clone();
        let state = MatchingState { next: 0, found: VecDeque::new(), has_found: false };
        from_state("MatchingFiles", state, move |state, pull: &Pull| {
            loop {
                pull.check()?;
                if let Some(name) = state.found.pop_front() {
                    return Ok(Some(vec![Tensor::string(name)]));
                }
                let Some(pattern) = patterns.get(state.next) else {
                    if !state.has_found {
                        return Err(Error::new(Code::NotFound, "Don't find any matched files"));
                    }
                    return Ok(None);
                };
                state.found = files_of(&String::from_utf8_lossy(pattern))?;
                state.has_found |= !state.found.is_empty();
                state.next += 1;
            }
        })
    })
}

/// Returns the names of the files that match a pattern.
///
/// # Errors
/// `NotFound` if the folder before the first wildcard does not exist.
fn files_of(pattern: &str) -> Result<VecDeque<Bytes>> {
    let is_local = store::is_local(Path::new(pattern));
    if is_local {
        let fixed = pattern.find(['*', '?', '[', '\\']).map_or(pattern, |end| &pattern[..end]);
        let folder =
            fixed.rsplit_once('/').map_or(".", |(folder, _)| if folder.is_empty() { "/" } else { folder });
        std::fs::read_dir(folder).map_err(|e| checkpoint::Error::file(Path::new(folder), &e))?;
    }
    let mut names = checkpoint::pattern::matching(pattern)?;
    names.retain(|name| !is_local || !Path::new(name).is_dir());
    names.sort_unstable();
    Ok(names.into_iter().map(Bytes::from).collect())
}
