//! The cache of a segment's CUDA graphs, and the decision whether a run captures, replays or runs kernel by
//! kernel. The module has no GPU code.

/// Number of runs with inputs of one signature before the segment is captured: the first runs load kernels and
/// choose algorithms, and inputs that occur only once are not worth a capture.
const RUNS_BEFORE_CAPTURE: u32 = 2;

/// Largest number of input signatures, and of graphs, in the cache; when it is exceeded, the least recently
/// used signature or graph is evicted.
const MAX_SIGNATURES: usize = 16;
const MAX_GRAPHS: usize = 4;

/// Number of runs in a row in which a graph's inputs have moved, after which the graph is evicted, so that
/// another can be captured.
const MAX_MISSES: u32 = 3;

/// Number of launches after which the tensors that a graph copies are counted, to decide whether the graph is
/// kept.
const TRIAL_LAUNCHES: u32 = 8;

/// A graph that is evicted after fewer launches than [`WORTHWHILE_LAUNCHES`] was not worth its capture; after
/// [`MAX_WORTHLESS_GRAPHS`] such graphs in a row captures stop.
const WORTHWHILE_LAUNCHES: u32 = 16;
const MAX_WORTHLESS_GRAPHS: u32 = 16;

/// The way in which a run of a segment is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayDecision {
    /// Run the kernels one by one.
    RunKernels,
    /// Capture the kernels, if that is possible in this run.
    Capture,
    /// Launch the cached graph.
    Replay,
}

/// The statistics and graphs of a segment's runs, by input signature.
#[derive(Debug)]
pub(super) struct GraphCache<S, G> {
    /// One entry per input signature, the least recently used first; the entry of the current run is last.
    entries: Vec<Entry<S, G>>,
    /// Number of graphs evicted in a row after fewer than [`WORTHWHILE_LAUNCHES`] launches.
    worthless: u32,
    /// True once captures have stopped.
    has_stopped: bool,
}

/// The statistics of runs with inputs of one signature, and the graph captured for them.
#[derive(Debug)]
struct Entry<S, G> {
    signature: S,
    runs: u32,
    launches: u32,
    /// True if the graph was evicted because it costs more than launching its kernels one by one.
    is_rejected: bool,
    /// Number of runs in a row in which the graph could not be launched.
    misses: u32,
    captured: Option<G>,
}

impl<S: PartialEq, G> GraphCache<S, G> {
    /// Returns an empty cache.
    pub(super) fn new() -> GraphCache<S, G> {
        GraphCache { entries: Vec::new(), worthless: 0, has_stopped: false }
    }

    /// Counts a run with inputs of this signature, and returns how to run it.
    pub(super) fn decide(&mut self, signature: S) -> ReplayDecision {
        if self.has_stopped {
            return ReplayDecision::RunKernels;
        }
        let entry = match self.entries.iter().position(|entry| entry.signature == signature) {
            Some(at) => self.entries.remove(at),
            None => Entry { signature, runs: 0, launches: 0, is_rejected: false, misses: 0, captured: None },
        };
        if self.entries.len() >= MAX_SIGNATURES {
            self.entries.remove(0);
        }
        let Entry { runs, captured, is_rejected, .. } = &entry;
        let decision = match captured {
            Some(_) => ReplayDecision::Replay,
            None if *runs >= RUNS_BEFORE_CAPTURE && !is_rejected => ReplayDecision::Capture,
            None => ReplayDecision::RunKernels,
        };
        self.entries.push(Entry { runs: entry.runs.saturating_add(1), ..entry });
        decision
    }

    /// Returns the graph that is cached for the input signature of the current run.
    pub(super) fn captured(&mut self) -> Option<&mut G> {
        self.entries.last_mut()?.captured.as_mut()
    }

    /// Caches the graph that was captured in the current run, evicting the least recently used if the cache is
    /// full.
    pub(super) fn insert(&mut self, captured: G) {
        if self.entries.iter().filter(|entry| entry.captured.is_some()).count() >= MAX_GRAPHS
            && let Some(oldest) = self.entries.iter_mut().find(|entry| entry.captured.is_some())
        {
            oldest.captured = None;
            oldest.runs = 0;
        }
        if let Some(entry) = self.entries.last_mut() {
            (entry.captured, entry.launches, entry.misses) = (Some(captured), 0, 0);
        }
    }

    /// Returns whether the graph of the current run has been launched often enough to judge its cost.
    pub(super) fn is_trial_over(&self) -> bool {
        self.entries.last().is_some_and(|entry| entry.launches >= TRIAL_LAUNCHES)
    }

    /// Evicts the graph of the current run for good, because it costs more than launching its kernels one by
    /// one.
    pub(super) fn reject(&mut self) {
        if let Some(entry) = self.entries.last_mut() {
            (entry.captured, entry.is_rejected) = (None, true);
        }
    }

    /// Counts a launch of the current run's graph.
    pub(super) fn record_launch(&mut self) {
        if let Some(entry) = self.entries.last_mut() {
            entry.launches = entry.launches.saturating_add(1);
            entry.misses = 0;
        }
    }

    /// Counts a run in which inputs of the graph were in other memory than during the capture, and evicts the
    /// graph after [`MAX_MISSES`] such runs in a row. Returns whether captures have stopped, because too many
    /// graphs were not worth their capture.
    pub(super) fn record_miss(&mut self) -> bool {
        let Some(entry) = self.entries.last_mut() else { return self.has_stopped };
        entry.misses += 1;
        if entry.misses >= MAX_MISSES {
            entry.captured = None;
            self.worthless = if entry.launches < WORTHWHILE_LAUNCHES { self.worthless + 1 } else { 0 };
        }
        if self.worthless >= MAX_WORTHLESS_GRAPHS {
            self.stop_capturing();
        }
        self.has_stopped
    }

    /// Stops captures for good.
    pub(super) fn stop_capturing(&mut self) {
        self.entries.clear();
        self.has_stopped = true;
    }
}

#[cfg(test)]
mod tests {
    use super::ReplayDecision::{Capture, Replay, RunKernels};
    use super::*;

    /// Returns the decisions for simulated runs of a segment: each letter of `runs` is the input signature of
    /// one run. A capture succeeds unless the letter is upper-case.
    fn decisions(cache: &mut GraphCache<char, char>, runs: &str) -> Vec<ReplayDecision> {
        runs.chars()
            .map(|signature| {
                let decision = cache.decide(signature);
                match (decision, signature.is_uppercase()) {
                    (Capture, false) => cache.insert(signature),
                    (Capture, true) => cache.stop_capturing(),
                    _ => {}
                }
                decision
            })
            .collect()
    }

    #[test]
    fn third_run_is_captured_and_later_runs_replay() {
        let mut cache = GraphCache::new();
        assert_eq!(decisions(&mut cache, "aaaaa"), [RunKernels, RunKernels, Capture, Replay, Replay]);
        assert_eq!(cache.captured(), Some(&mut 'a'));
    }

    #[test]
    fn each_signature_has_its_own_graph() {
        let mut cache = GraphCache::new();
        assert_eq!(
            decisions(&mut cache, "ababab"),
            [RunKernels, RunKernels, RunKernels, RunKernels, Capture, Capture]
        );
        assert_eq!(decisions(&mut cache, "ba"), [Replay, Replay]);
        assert_eq!(cache.captured(), Some(&mut 'a'));
    }

    #[test]
    fn least_recently_used_graph_is_evicted() {
        let mut cache = GraphCache::new();
        decisions(&mut cache, "aaabbbcccddd");
        assert_eq!(decisions(&mut cache, "a"), [Replay]);
        decisions(&mut cache, "eee");
        assert_eq!(decisions(&mut cache, "acde"), [Replay; 4]);
        assert_eq!(decisions(&mut cache, "bbb"), [RunKernels, RunKernels, Capture]);
    }

    #[test]
    fn rejected_signature_is_not_captured_again() {
        let mut cache = GraphCache::new();
        decisions(&mut cache, "aaabbb");
        for _ in 0..TRIAL_LAUNCHES {
            assert!(!cache.is_trial_over());
            cache.record_launch();
        }
        assert!(cache.is_trial_over());
        cache.reject();
        assert_eq!(decisions(&mut cache, "bbba"), [RunKernels, RunKernels, RunKernels, Replay]);
        assert!(!cache.is_trial_over());
    }

    #[test]
    fn signatures_seen_once_are_evicted() {
        let mut cache = GraphCache::new();
        let once: String = (0..1000u32).filter_map(|i| char::from_u32('一' as u32 + i)).collect();
        decisions(&mut cache, "aa");
        assert!(decisions(&mut cache, &once).iter().all(|&decision| decision == RunKernels));
        assert_eq!(cache.entries.len(), MAX_SIGNATURES);
        assert_eq!(decisions(&mut cache, "a"), [RunKernels]);
    }

    #[test]
    fn nothing_is_captured_after_stop_capturing() {
        let mut cache = GraphCache::new();
        assert_eq!(decisions(&mut cache, "aaa"), [RunKernels, RunKernels, Capture]);
        assert_eq!(
            decisions(&mut cache, "XXXXaaaa"),
            [RunKernels, RunKernels, Capture, RunKernels, RunKernels, RunKernels, RunKernels, RunKernels]
        );
    }

    #[test]
    fn graph_with_repeated_misses_is_dropped_and_recaptured() {
        let mut cache = GraphCache::new();
        decisions(&mut cache, "aaa");
        cache.record_launch();
        for _ in 1..MAX_MISSES {
            assert_eq!(decisions(&mut cache, "a"), [Replay]);
            assert!(!cache.record_miss());
        }
        // A launch resets the count of misses.
        assert_eq!(decisions(&mut cache, "a"), [Replay]);
        cache.record_launch();
        for _ in 0..MAX_MISSES {
            assert_eq!(decisions(&mut cache, "a"), [Replay]);
            assert!(!cache.record_miss());
        }
        assert_eq!(decisions(&mut cache, "aa"), [Capture, Replay]);
    }

    #[test]
    fn capturing_stops_after_many_worthless_graphs() {
        let graphs_captured = |launches: u32| {
            let mut cache = GraphCache::new();
            decisions(&mut cache, "aa");
            for graph in 0..10 * MAX_WORTHLESS_GRAPHS {
                if decisions(&mut cache, "a") != [Capture] {
                    return graph;
                }
                (0..launches).for_each(|_| cache.record_launch());
                for _ in 0..MAX_MISSES {
                    decisions(&mut cache, "a");
                    cache.record_miss();
                }
            }
            10 * MAX_WORTHLESS_GRAPHS
        };
        assert_eq!(graphs_captured(WORTHWHILE_LAUNCHES - 1), MAX_WORTHLESS_GRAPHS);
        assert_eq!(graphs_captured(WORTHWHILE_LAUNCHES), 10 * MAX_WORTHLESS_GRAPHS);
    }
}
