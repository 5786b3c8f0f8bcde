//! What is known of a segment's runs, and so what to do in the next: a value, which knows nothing of GPUs.

/// A segment runs so often with the same inputs before it is captured: what is loaded or chosen in a first run is there
/// then, and inputs that come once are not worth it.
const RUNS_BEFORE: u32 = 2;

/// Kinds of inputs that are remembered, and those of them of which a graph is kept. The longest unused gives way.
const MOST_KNOWN: usize = 16;
const MOST_CAPTURED: usize = 4;

/// A graph that is of no use for so many runs in a row makes room for another.
const MOST_MISSES: u32 = 3;

/// What a graph copies is known when it was launched so often.
const TRIALS: u32 = 8;

/// A graph that was launched less often was not worth its capture; after so many of them none is made.
const WORTH: u32 = 16;
const MOST_WORTHLESS: u32 = 16;

/// What to do in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// To run the kernels one by one.
    Walk,
    /// To capture what they enqueue, if that can be done now.
    Capture,
    /// To launch what was captured.
    Repeat,
}

/// By what a segment is given, what was seen of it.
#[derive(Debug)]
pub(super) struct Known<S, G> {
    /// The one of the last run comes last.
    entries: Vec<Entry<S, G>>,
    /// How many graphs in a row were not worth it.
    worthless: u32,
    has_given_up: bool,
}

#[derive(Debug)]
struct Entry<S, G> {
    signature: S,
    runs: u32,
    launches: u32,
    /// A graph is more work than its kernels.
    is_hopeless: bool,
    /// Runs in a row in which the graph was of no use.
    misses: u32,
    captured: Option<G>,
}

impl<S: PartialEq, G> Known<S, G> {
    pub(super) fn new() -> Known<S, G> {
        Known { entries: Vec::new(), worthless: 0, has_given_up: false }
    }

    /// What to do in a run with these inputs, which counts as one from now on.
    pub(super) fn turn(&mut self, signature: S) -> Turn {
        if self.has_given_up {
            return Turn::Walk;
        }
        let entry = match self.entries.iter().position(|entry| entry.signature == signature) {
            Some(at) => self.entries.remove(at),
            None => Entry { signature, runs: 0, launches: 0, is_hopeless: false, misses: 0, captured: None },
        };
        if self.entries.len() >= MOST_KNOWN {
            self.entries.remove(0);
        }
        let Entry { runs, captured, is_hopeless, .. } = &entry;
        let turn = match captured {
            Some(_) => Turn::Repeat,
            None if *runs >= RUNS_BEFORE && !is_hopeless => Turn::Capture,
            None => Turn::Walk,
        };
        self.entries.push(Entry { runs: entry.runs.saturating_add(1), ..entry });
        turn
    }

    /// What is there to repeat in this run.
    pub(super) fn captured(&mut self) -> Option<&mut G> {
        self.entries.last_mut()?.captured.as_mut()
    }

    /// Keeps what was captured in this run.
    pub(super) fn keep(&mut self, captured: G) {
        if self.entries.iter().filter(|entry| entry.captured.is_some()).count() >= MOST_CAPTURED
            && let Some(oldest) = self.entries.iter_mut().find(|entry| entry.captured.is_some())
        {
            oldest.captured = None;
            oldest.runs = 0;
        }
        if let Some(entry) = self.entries.last_mut() {
            (entry.captured, entry.launches, entry.misses) = (Some(captured), 0, 0);
        }
    }

    /// Whether it can be said by now if the graph of this run is worth it.
    pub(super) fn is_tried(&self) -> bool {
        self.entries.last().is_some_and(|entry| entry.launches >= TRIALS)
    }

    /// Inputs as of this run are not captured again: their graph is more work than its kernels.
    pub(super) fn let_go(&mut self) {
        if let Some(entry) = self.entries.last_mut() {
            (entry.captured, entry.is_hopeless) = (None, true);
        }
    }

    /// The graph has been launched in this run.
    pub(super) fn launched(&mut self) {
        if let Some(entry) = self.entries.last_mut() {
            entry.launches = entry.launches.saturating_add(1);
            entry.misses = 0;
        }
    }

    /// What the graph works on is elsewhere in this run; gives whether nothing is captured from now on, because that
    /// happens too often.
    pub(super) fn missed(&mut self) -> bool {
        let Some(entry) = self.entries.last_mut() else { return self.has_given_up };
        entry.misses += 1;
        if entry.misses >= MOST_MISSES {
            entry.captured = None;
            self.worthless = if entry.launches < WORTH { self.worthless + 1 } else { 0 };
        }
        if self.worthless >= MOST_WORTHLESS {
            self.give_up();
        }
        self.has_given_up
    }

    /// Nothing is captured any more.
    pub(super) fn give_up(&mut self) {
        self.entries.clear();
        self.has_given_up = true;
    }
}

#[cfg(test)]
mod tests {
    use super::Turn::{Capture, Repeat, Walk};
    use super::*;

    /// Runs as a segment does whose captures succeed, unless the letter of the inputs is capital.
    fn turns(known: &mut Known<char, char>, runs: &str) -> Vec<Turn> {
        runs.chars()
            .map(|signature| {
                let turn = known.turn(signature);
                match (turn, signature.is_uppercase()) {
                    (Capture, false) => known.keep(signature),
                    (Capture, true) => known.give_up(),
                    _ => {}
                }
                turn
            })
            .collect()
    }

    #[test]
    fn the_third_run_captures_and_later_ones_repeat() {
        let mut known = Known::new();
        assert_eq!(turns(&mut known, "aaaaa"), [Walk, Walk, Capture, Repeat, Repeat]);
        assert_eq!(known.captured(), Some(&mut 'a'));
    }

    #[test]
    fn other_inputs_are_captured_for_themselves() {
        let mut known = Known::new();
        assert_eq!(turns(&mut known, "ababab"), [Walk, Walk, Walk, Walk, Capture, Capture]);
        assert_eq!(turns(&mut known, "ba"), [Repeat, Repeat]);
        assert_eq!(known.captured(), Some(&mut 'a'));
    }

    #[test]
    fn of_too_many_captured_the_longest_unused_gives_way() {
        let mut known = Known::new();
        turns(&mut known, "aaabbbcccddd");
        assert_eq!(turns(&mut known, "a"), [Repeat]);
        turns(&mut known, "eee");
        assert_eq!(turns(&mut known, "acde"), [Repeat; 4]);
        assert_eq!(turns(&mut known, "bbb"), [Walk, Walk, Capture]);
    }

    #[test]
    fn a_graph_that_is_more_work_than_its_kernels_is_not_captured_again() {
        let mut known = Known::new();
        turns(&mut known, "aaabbb");
        for _ in 0..TRIALS {
            assert!(!known.is_tried());
            known.launched();
        }
        assert!(known.is_tried());
        known.let_go();
        assert_eq!(turns(&mut known, "bbba"), [Walk, Walk, Walk, Repeat]);
        assert!(!known.is_tried());
    }

    #[test]
    fn inputs_that_never_come_again_are_forgotten() {
        let mut known = Known::new();
        let once: String = (0..1000u32).filter_map(|i| char::from_u32('一' as u32 + i)).collect();
        turns(&mut known, "aa");
        assert!(turns(&mut known, &once).iter().all(|&turn| turn == Walk));
        assert_eq!(known.entries.len(), MOST_KNOWN);
        assert_eq!(turns(&mut known, "a"), [Walk]);
    }

    #[test]
    fn who_has_given_up_captures_nothing_more() {
        let mut known = Known::new();
        assert_eq!(turns(&mut known, "aaa"), [Walk, Walk, Capture]);
        assert_eq!(turns(&mut known, "XXXXaaaa"), [Walk, Walk, Capture, Walk, Walk, Walk, Walk, Walk]);
    }

    #[test]
    fn a_graph_that_is_of_no_use_for_some_runs_makes_room_for_another() {
        let mut known = Known::new();
        turns(&mut known, "aaa");
        known.launched();
        for _ in 1..MOST_MISSES {
            assert_eq!(turns(&mut known, "a"), [Repeat]);
            assert!(!known.missed());
        }
        // A run in which it is of use, and the count begins anew.
        assert_eq!(turns(&mut known, "a"), [Repeat]);
        known.launched();
        for _ in 0..MOST_MISSES {
            assert_eq!(turns(&mut known, "a"), [Repeat]);
            assert!(!known.missed());
        }
        assert_eq!(turns(&mut known, "aa"), [Capture, Repeat]);
    }

    #[test]
    fn graphs_that_are_never_worth_it_are_given_up_and_others_are_not() {
        let lived = |launches: u32| {
            let mut known = Known::new();
            turns(&mut known, "aa");
            for graph in 0..10 * MOST_WORTHLESS {
                if turns(&mut known, "a") != [Capture] {
                    return graph;
                }
                (0..launches).for_each(|_| known.launched());
                for _ in 0..MOST_MISSES {
                    turns(&mut known, "a");
                    known.missed();
                }
            }
            10 * MOST_WORTHLESS
        };
        assert_eq!(lived(WORTH - 1), MOST_WORTHLESS);
        assert_eq!(lived(WORTH), 10 * MOST_WORTHLESS);
    }
}
