//! Which kernels of a partition are enqueued as one: segments, decided from what is known of each node.
//!
//! Those of one segment wait for the same nodes outside it (or for such as end when those do), and the same transfers to
//! other tasks wait for them. So no kernel waits for what it does not need, no tensor leaves later for being in a segment,
//! and no two segments, nor a segment and another node, can wait for each other. Of one segment either all are dead or
//! none is: they depend on the same receives, and on the same turn of a loop.

use device::repeat::Capture;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// What decides about a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    /// Its kernel may be captured, and all that it is given is where it wants it or comes from outside.
    pub(super) may_join: bool,
    /// What its kernel does.
    pub(super) capture: Capture,
    /// It is given something that lies in another memory: it waits for a transfer.
    pub(super) is_brought: bool,
    /// It runs also where what it waits for is dead.
    pub(super) runs_anyway: bool,
    /// It receives what does not wait for this partition's kernels, but for those that it waits for itself.
    pub(super) arrives: bool,
    /// The node, if not itself, that ends when it does, and is dead when it is: it stands for all such.
    pub(super) ends_with: u32,
    /// Who waits for it waits for all that those wait for that end with it.
    pub(super) is_gate: bool,
    /// The frame that it runs in.
    pub(super) frame: u32,
    /// It sends to another task.
    pub(super) sends: bool,
}

/// To repeat fewer kernels as one is not worth it.
const FEWEST: usize = 4;

/// Partitions in which nodes wait for more different sets of others have no segments.
const MOST_SETS: usize = 1024;

/// The segments, each in an order in which its nodes may run: those that update variables, and who waits for them, come
/// late, when values of the variables that are read are no longer held; those that assign, and who waits for them, last,
/// for who updates others may hold such values. Segments of one frame are adjacent, in the order of frames.
///
/// `order` has every node after those that it `waits` for. Who waits for a node that another is `implied` by, and for that
/// other one, has not more to wait for than who waits for the other one alone.
pub(super) fn find(
    order: &[u32],
    waits: &[SmallVec<[u32; 4]>],
    parts: &[Part],
    implied: FxHashMap<u32, u32>,
) -> Vec<Vec<u32>> {
    let places = places(order, waits, parts);
    let Some(keys) = keys(order, waits, parts, &places, implied) else { return Vec::new() };
    let mut numbers = FxHashMap::default();
    let mut segments: Vec<Vec<u32>> = Vec::new();
    for &node in order.iter().filter(|&&node| places[node as usize] == Place::Within) {
        let key = (keys[node as usize], parts[node as usize].frame);
        let number = *numbers.entry(key).or_insert(segments.len());
        if number == segments.len() {
            segments.push(Vec::new());
        }
        segments[number].push(node);
    }
    let works = |nodes: &[u32]| nodes.iter().filter(|&&node| parts[node as usize].capture.works()).count();
    segments.retain(|nodes| works(nodes) >= FEWEST);
    segments.sort_by_key(|nodes| nodes.first().map(|&first| parts[first as usize].frame));
    let mut after = vec![Capture::Work; parts.len()];
    for nodes in &mut segments {
        for &node in &*nodes {
            let before = waits[node as usize].iter().map(|&before| after[before as usize]);
            after[node as usize] = before.fold(parts[node as usize].capture.max(Capture::Work), Ord::max);
        }
        nodes.sort_by_key(|&node| after[node as usize]);
    }
    segments
}

/// Where a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a segment, or, if that would be too small, by itself.
    Within,
    /// Before all segments whose kernels wait for what it waits for: it waits for none.
    Ahead,
    /// Between segments.
    Between,
}

/// By node, its place. What could be in a segment, but has nothing to repeat, runs ahead where others do that wait for it:
/// numbers are drawn by the shape of what comes before a step's kernels, so that they do not part these.
fn places(order: &[u32], waits: &[SmallVec<[u32; 4]>], parts: &[Part]) -> Vec<Place> {
    let mut places = vec![Place::Between; parts.len()];
    let mut may_run_ahead = vec![false; parts.len()];
    for &node in order {
        let (part, waits) = (&parts[node as usize], &waits[node as usize]);
        let comes_late = part.is_brought || part.may_join && part.capture.works();
        may_run_ahead[node as usize] =
            part.arrives || !comes_late && waits.iter().all(|&before| may_run_ahead[before as usize]);
        places[node as usize] = match (part.may_join, may_run_ahead[node as usize]) {
            (true, _) => Place::Within,
            (false, true) => Place::Ahead,
            (false, false) => Place::Between,
        };
    }
    for &node in order.iter().rev().filter(|&&node| !parts[node as usize].arrives) {
        if places[node as usize] == Place::Ahead {
            waits[node as usize].iter().for_each(|&before| places[before as usize] = Place::Ahead);
        }
    }
    places
}

/// By node, numbers of sets: of the nodes outside of segments that it waits for, of those whose death is its own, and of the
/// transfers to other tasks that wait for it. `None` if there are too many.
fn keys(
    order: &[u32],
    waits: &[SmallVec<[u32; 4]>],
    parts: &[Part],
    places: &[Place],
    implied: FxHashMap<u32, u32>,
) -> Option<Vec<[u32; 3]>> {
    let mut sets = Sets::new(implied);
    let mut keys = vec![[Sets::EMPTY; 3]; parts.len()];
    for &node in order {
        let part = &parts[node as usize];
        let (mut set, mut deaths) = (Sets::EMPTY, Sets::EMPTY);
        for &before in &waits[node as usize] {
            let mut known = keys[before as usize][0];
            if places[before as usize] == Place::Between {
                known = sets.with(known, parts[before as usize].ends_with)?;
            }
            set = sets.union(set, known)?;
            deaths = sets.union(deaths, keys[before as usize][1])?;
        }
        if part.is_brought {
            set = sets.with(if part.is_gate { Sets::EMPTY } else { set }, part.ends_with)?;
        }
        if part.runs_anyway {
            deaths = sets.with(Sets::EMPTY, part.ends_with)?;
        }
        keys[node as usize] = [set, deaths, Sets::EMPTY];
    }
    for &node in order.iter().rev() {
        let mut set = keys[node as usize][2];
        if parts[node as usize].sends {
            set = sets.with(set, node)?;
        }
        for &before in &waits[node as usize] {
            keys[before as usize][2] = sets.union(keys[before as usize][2], set)?;
        }
    }
    Some(keys)
}

/// Sets of nodes, each known by a number.
struct Sets {
    sets: Vec<SmallVec<[u32; 8]>>,
    numbers: FxHashMap<SmallVec<[u32; 8]>, u32>,
    unions: FxHashMap<(u32, u32), u32>,
    /// What is left out of a set that has another.
    implied: FxHashMap<u32, u32>,
}

impl Sets {
    const EMPTY: u32 = 0;

    fn new(implied: FxHashMap<u32, u32>) -> Sets {
        let empty = SmallVec::new();
        let numbers = FxHashMap::from_iter([(empty.clone(), Sets::EMPTY)]);
        Sets { sets: vec![empty], numbers, unions: FxHashMap::default(), implied }
    }

    fn number(&mut self, mut set: SmallVec<[u32; 8]>) -> Option<u32> {
        if !self.implied.is_empty() {
            let all = set.clone();
            set.retain(|node| self.implied.get(node).is_none_or(|by| all.binary_search(by).is_err()));
        }
        if let Some(&number) = self.numbers.get(&set) {
            return Some(number);
        }
        let number = self.sets.len();
        self.sets.push(set.clone());
        self.numbers.insert(set, number as u32);
        (number < MOST_SETS).then_some(number as u32)
    }

    fn with(&mut self, set: u32, node: u32) -> Option<u32> {
        let mut nodes = self.sets[set as usize].clone();
        if let Err(at) = nodes.binary_search(&node) {
            nodes.insert(at, node);
        }
        self.number(nodes)
    }

    fn union(&mut self, a: u32, b: u32) -> Option<u32> {
        if a == b || b == Sets::EMPTY {
            return Some(a);
        }
        if a == Sets::EMPTY {
            return Some(b);
        }
        let key = (a.min(b), a.max(b));
        if let Some(&known) = self.unions.get(&key) {
            return Some(known);
        }
        let mut nodes = self.sets[a as usize].clone();
        nodes.extend_from_slice(&self.sets[b as usize]);
        nodes.sort_unstable();
        nodes.dedup();
        let number = self.number(nodes)?;
        self.unions.insert(key, number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// Nodes in order, `name(kind): whom it waits for`, a line each. Kinds are `kernel`, `shape` (a kernel that enqueues
    /// nothing), `update`, `assign`, `brought` (a kernel that is given what lies elsewhere), `send`, `recv`, `with` (a
    /// receive that ends when the node before does), `fed`, `other`.
    fn check(graph: &str, expected: Expect) {
        let mut names: Vec<&str> = Vec::new();
        let (mut waits, mut parts) = (Vec::new(), Vec::new());
        for line in graph.trim().lines() {
            let (head, tail) = line.split_once(':').unwrap_or((line, ""));
            let (name, kind) = head.trim().trim_end_matches(')').split_once('(').unwrap_or((head, ""));
            let number = |name: &str| names.iter().position(|known| *known == name).map(|n| n as u32);
            waits.push(tail.split_whitespace().filter_map(number).collect::<SmallVec<[u32; 4]>>());
            let capture = match kind {
                "kernel" | "brought" => Capture::Work,
                "shape" => Capture::Passes,
                "update" => Capture::Updates,
                "assign" => Capture::Assigns,
                _ => Capture::Never,
            };
            parts.push(Part {
                may_join: capture != Capture::Never,
                capture,
                is_brought: ["brought", "recv", "with"].contains(&kind),
                runs_anyway: ["recv", "with"].contains(&kind),
                arrives: ["recv", "with", "fed"].contains(&kind),
                ends_with: (names.len() - usize::from(kind == "with")) as u32,
                is_gate: false,
                frame: 0,
                sends: kind == "send",
            });
            names.push(name);
        }
        let order: Vec<u32> = (0..names.len() as u32).collect();
        let lines = find(&order, &waits, &parts, FxHashMap::default()).into_iter().map(|nodes| {
            let nodes: Vec<&str> = nodes.iter().map(|&node| names[node as usize]).collect();
            nodes.join(" ") + "\n"
        });
        expected.assert_eq(&lines.collect::<String>());
    }

    #[test]
    fn kernels_that_wait_for_nothing_are_one_segment() {
        check(
            "
            handle(other):
            one(other):
            a(kernel): handle one
            b(kernel): a
            c(kernel): a
            d(kernel): b c
            end(other): d
            ",
            expect![[r#"
                a b c d
            "#]],
        );
    }

    #[test]
    fn what_updates_comes_late_and_what_assigns_last() {
        check(
            "
            rate(kernel):
            next(kernel): rate
            counter(assign): next
            slope(kernel):
            w(update): slope rate
            other(kernel): slope
            told(kernel): counter
            ",
            expect![[r#"
                rate next slope other w counter told
            "#]],
        );
    }

    #[test]
    fn few_kernels_are_none() {
        check("a(kernel):\nb(kernel): a\nc(kernel): b\nd(shape): c\ne(shape): d", expect![[""]]);
    }

    #[test]
    fn a_kernel_does_not_wait_for_what_another_receives() {
        check(
            "
            x(recv):
            y(recv):
            a(kernel): x
            b(kernel): a
            c(kernel): b
            d(kernel): c
            e(kernel): d y
            f(kernel): e
            g(kernel): f
            h(kernel): g
            ",
            expect![[r#"
                a b c d
                e f g h
            "#]],
        );
    }

    #[test]
    fn what_comes_at_one_time_is_waited_for_as_one() {
        check(
            "
            x(recv):
            y(with):
            a(kernel): x
            b(kernel): a y
            c(kernel): b
            d(kernel): c
            ",
            expect![[r#"
                a b c d
            "#]],
        );
    }

    #[test]
    fn what_a_step_is_fed_is_there_from_the_start() {
        check(
            "
            x(fed):
            y(fed):
            rate(kernel):
            a(kernel): x
            b(kernel): a y
            c(kernel): b rate
            ",
            expect![[r#"
                rate a b c
            "#]],
        );
    }

    #[test]
    fn what_needs_no_kernels_of_a_segment_runs_ahead_of_it() {
        check(
            "
            x(recv):
            shape(shape): x
            random(other): shape
            handle(other):
            read(shape): handle
            a(kernel): x read
            b(kernel): a random
            c(kernel): b
            d(kernel): c
            later(other): d
            e(kernel): later
            f(kernel): e
            g(kernel): f
            h(kernel): g
            ",
            expect![[r#"
                a b c d
                e f g h
            "#]],
        );
    }

    #[test]
    fn what_lives_without_a_receive_is_not_with_what_dies_with_it() {
        check(
            "
            x(recv):
            y(recv): x
            a(kernel): y
            b(kernel): a
            c(kernel): b
            d(kernel): c
            e(kernel): d x
            f(kernel): e
            g(kernel): f
            h(kernel): g
            ",
            expect![[r#"
                a b c d
                e f g h
            "#]],
        );
    }

    #[test]
    fn what_is_sent_does_not_wait_for_kernels_that_it_is_not_made_by() {
        check(
            "
            a(kernel):
            b(kernel): a
            c(kernel): b
            d(kernel): c
            away(send): d
            e(kernel): d
            f(kernel): e
            g(kernel): f
            h(kernel): g
            ",
            expect![[r#"
                a b c d
                e f g h
            "#]],
        );
    }

    #[test]
    fn a_node_between_two_kernels_parts_them() {
        check(
            "
            a(kernel):
            b(kernel): a
            c(kernel): b
            d(kernel): c
            random(other): a
            e(kernel): random d
            f(kernel): e
            g(kernel): f
            h(kernel): g
            i(kernel): d
            ",
            expect![[r#"
                a b c d i
                e f g h
            "#]],
        );
    }

    #[test]
    fn what_is_brought_from_another_memory_is_waited_for() {
        check(
            "
            a(kernel):
            b(kernel): a
            c(kernel): b
            d(kernel): c
            e(brought): a
            f(kernel): e
            g(kernel): f
            h(kernel): g d
            ",
            expect![[r#"
                a b c d
                e f g h
            "#]],
        );
    }

    #[test]
    fn variables_change_after_they_are_read() {
        check(
            "
            v(other):
            read(kernel): v
            slope(kernel): read
            apply(update): v slope
            after(kernel): apply
            back(kernel): read slope
            ",
            expect![[r#"
                read slope back apply after
            "#]],
        );
    }

    #[test]
    fn a_partition_of_too_many_receives_has_none_and_takes_no_time() {
        let (mut waits, mut parts) = (Vec::<SmallVec<[u32; 4]>>::new(), Vec::new());
        for i in 0..100_000u32 {
            let is_kernel = i % 2 == 1;
            waits.push((is_kernel && i > 2).then(|| [i - 1, i - 2]).into_iter().flatten().collect());
            let capture = if is_kernel { Capture::Work } else { Capture::Never };
            let part = Part { may_join: is_kernel, capture, is_brought: !is_kernel, ..Part::default() };
            parts.push(Part { ends_with: i, ..part });
        }
        let order: Vec<u32> = (0..100_000).collect();
        assert_eq!(find(&order, &waits, &parts, FxHashMap::default()), Vec::<Vec<u32>>::new());
    }
}
