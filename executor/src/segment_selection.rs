//! The selection of segments: kernels of a partition that are enqueued as one, chosen from the properties of each node.
//!
//! All kernels of a segment wait for the same nodes outside of it (or for nodes that end at the same time as those),
//! and the same sends to other tasks wait for them. Therefore no kernel waits for nodes that it does not need, no send
//! is delayed by a segment, and there is no cycle of waits among segments and other nodes. All kernels of a segment are
//! dead or none is, because they depend on the same receives and on the same iteration of a loop.

use device::segment_runner::CaptureClass;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The properties of a node that decide whether it joins a segment, and which.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeProperties {
    /// True if the kernel may be in a segment, given its capture class, the memories of its inputs, and the branch that
    /// it is in.
    pub(super) may_join: bool,
    /// The extent to which the kernel may be captured.
    pub(super) capture: CaptureClass,
    /// True if the node waits for more than its producers: for the transfer of an input to another memory, a received
    /// value, an asynchronous kernel, or an iteration of a loop.
    pub(super) needs_transfer: bool,
    /// True if the node runs even if its producers are dead.
    pub(super) runs_if_dead: bool,
    /// True if the node is a Recv whose sender waits for no kernel of this partition, except kernels that the Recv itself
    /// waits for.
    pub(super) is_received: bool,
    /// The first node of the group of nodes that end, and are dead, together with this node; its number identifies the
    /// group.
    pub(super) group: u32,
    /// True if waiting for the node means waiting for the producers of its whole group.
    pub(super) is_loop_boundary: bool,
    /// The frame that the node runs in.
    pub(super) frame: u32,
    /// True if the node sends to another task.
    pub(super) sends: bool,
}

/// The minimum number of kernels that enqueue work in a segment: capturing fewer is not worth it.
const MIN_KERNELS: usize = 4;

/// The maximum number of different sets of nodes in a [`SetTable`]. A partition that needs more has no segments.
const MAX_SETS: usize = 1024;

/// Returns the segments, each in an order in which its nodes may run. Nodes that update variables, and those that wait
/// for them, come late, when no kernel holds the values that were read before. Nodes that assign variables, and those
/// that wait for them, come last, because updating nodes may hold such values. The segments of one frame are adjacent,
/// in the order of frames.
///
/// In `order`, every node follows the nodes in its `waits`. If `implied` maps node `a` to node `b`, a wait for both is
/// the same as a wait for `b` alone.
pub(super) fn find(
    order: &[u32],
    waits: &[SmallVec<[u32; 4]>],
    properties: &[NodeProperties],
    implied: FxHashMap<u32, u32>,
) -> Vec<Vec<u32>> {
    let placements = placements(order, waits, properties);
    let Some(keys) = keys(order, waits, properties, &placements, implied) else { return Vec::new() };
    let mut numbers = FxHashMap::default();
    let mut segments: Vec<Vec<u32>> = Vec::new();
    for &node in order.iter().filter(|&&node| placements[node as usize] == Placement::InSegment) {
        let key = (keys[node as usize], properties[node as usize].frame);
        let number = *numbers.entry(key).or_insert(segments.len());
        if number == segments.len() {
            segments.push(Vec::new());
        }
        segments[number].push(node);
    }
    let works =
        |nodes: &[u32]| nodes.iter().filter(|&&node| properties[node as usize].capture.works()).count();
    segments.retain(|nodes| works(nodes) >= MIN_KERNELS);
    segments.sort_by_key(|nodes| nodes.first().map(|&first| properties[first as usize].frame));
    let mut after = vec![CaptureClass::Work; properties.len()];
    for nodes in &mut segments {
        for &node in &*nodes {
            let before = waits[node as usize].iter().map(|&before| after[before as usize]);
            after[node as usize] =
                before.fold(properties[node as usize].capture.max(CaptureClass::Work), Ord::max);
        }
        nodes.sort_by_key(|&node| after[node as usize]);
    }
    segments
}

/// The time at which a node runs, relative to the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// Within a segment, or by itself if the segment would be too small.
    InSegment,
    /// Before all segments with kernels that wait for the same nodes; the node waits for no segment.
    BeforeSegments,
    /// Outside segments; the node may wait for segments, and segments for the node.
    BetweenSegments,
}

/// Returns the placement of each node. A node that could join a segment but enqueues no work runs before the segments
/// if a node that runs before the segments waits for it. For example, an op of random numbers whose shape is known
/// before a step's kernels run does not split a segment, because the ops that compute the shape run before the segments
/// too.
fn placements(order: &[u32], waits: &[SmallVec<[u32; 4]>], properties: &[NodeProperties]) -> Vec<Placement> {
    let mut placements = vec![Placement::BetweenSegments; properties.len()];
    let mut may_run_ahead = vec![false; properties.len()];
    for &node in order {
        let (node_properties, waits) = (&properties[node as usize], &waits[node as usize]);
        let is_late =
            node_properties.needs_transfer || node_properties.may_join && node_properties.capture.works();
        may_run_ahead[node as usize] = node_properties.is_received
            || !is_late && waits.iter().all(|&before| may_run_ahead[before as usize]);
        placements[node as usize] = match (node_properties.may_join, may_run_ahead[node as usize]) {
            (true, _) => Placement::InSegment,
            (false, true) => Placement::BeforeSegments,
            (false, false) => Placement::BetweenSegments,
        };
    }
    for &node in order.iter().rev().filter(|&&node| !properties[node as usize].is_received) {
        if placements[node as usize] == Placement::BeforeSegments {
            waits[node as usize]
                .iter()
                .for_each(|&before| placements[before as usize] = Placement::BeforeSegments);
        }
    }
    placements
}

/// Returns a key for each node: the ids of three sets, which are the nodes outside of segments that it waits for, the
/// nodes that make the node dead if they are dead, and the sends to other tasks that wait for it. Nodes of one segment
/// have equal keys. Returns `None` if there are more sets than ids.
fn keys(
    order: &[u32],
    waits: &[SmallVec<[u32; 4]>],
    properties: &[NodeProperties],
    placements: &[Placement],
    implied: FxHashMap<u32, u32>,
) -> Option<Vec<[u32; 3]>> {
    let mut sets = SetTable::new(implied);
    let mut keys = vec![[SetTable::EMPTY; 3]; properties.len()];
    for &node in order {
        let node_properties = &properties[node as usize];
        let (mut set, mut deaths) = (SetTable::EMPTY, SetTable::EMPTY);
        for &before in &waits[node as usize] {
            let mut awaited = keys[before as usize][0];
            if placements[before as usize] == Placement::BetweenSegments {
                awaited = sets.with(awaited, properties[before as usize].group)?;
            }
            set = sets.union(set, awaited)?;
            deaths = sets.union(deaths, keys[before as usize][1])?;
        }
        if node_properties.needs_transfer {
            set = sets.with(
                if node_properties.is_loop_boundary { SetTable::EMPTY } else { set },
                node_properties.group,
            )?;
        }
        if node_properties.runs_if_dead {
            deaths = sets.with(SetTable::EMPTY, node_properties.group)?;
        }
        keys[node as usize] = [set, deaths, SetTable::EMPTY];
    }
    for &node in order.iter().rev() {
        let mut set = keys[node as usize][2];
        if properties[node as usize].sends {
            set = sets.with(set, node)?;
        }
        for &before in &waits[node as usize] {
            keys[before as usize][2] = sets.union(keys[before as usize][2], set)?;
        }
    }
    Some(keys)
}

/// A table of sets of nodes. Each set has a number, and equal sets have equal numbers.
struct SetTable {
    sets: Vec<SmallVec<[u32; 8]>>,
    numbers: FxHashMap<SmallVec<[u32; 8]>, u32>,
    unions: FxHashMap<(u32, u32), u32>,
    /// Nodes that are left out of a set if it contains the node that they are mapped to.
    implied: FxHashMap<u32, u32>,
}

impl SetTable {
    const EMPTY: u32 = 0;

    fn new(implied: FxHashMap<u32, u32>) -> SetTable {
        let empty = SmallVec::new();
        let numbers = FxHashMap::from_iter([(empty.clone(), SetTable::EMPTY)]);
        SetTable { sets: vec![empty], numbers, unions: FxHashMap::default(), implied }
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
        (number < MAX_SETS).then_some(number as u32)
    }

    fn with(&mut self, set: u32, node: u32) -> Option<u32> {
        let mut nodes = self.sets[set as usize].clone();
        if let Err(at) = nodes.binary_search(&node) {
            nodes.insert(at, node);
        }
        self.number(nodes)
    }

    fn union(&mut self, a: u32, b: u32) -> Option<u32> {
        if a == b || b == SetTable::EMPTY {
            return Some(a);
        }
        if a == SetTable::EMPTY {
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

    /// Checks the segments of a graph with a node in each line, in order: `name(kind): producers`. Kinds are `kernel`,
    /// `shape` (a kernel that enqueues nothing), `update`, `assign`, `brought` (a kernel with an input in another
    /// memory), `send`, `recv`, `with` (a receive that ends when the node before does), `fed`, `other`.
    fn check(graph: &str, expected: Expect) {
        let mut names: Vec<&str> = Vec::new();
        let (mut waits, mut properties) = (Vec::new(), Vec::new());
        for line in graph.trim().lines() {
            let (head, tail) = line.split_once(':').unwrap_or((line, ""));
            let (name, kind) = head.trim().trim_end_matches(')').split_once('(').unwrap_or((head, ""));
            let number = |name: &str| names.iter().position(|known| *known == name).map(|n| n as u32);
            waits.push(tail.split_whitespace().filter_map(number).collect::<SmallVec<[u32; 4]>>());
            let capture = match kind {
                "kernel" | "brought" => CaptureClass::Work,
                "shape" => CaptureClass::Passes,
                "update" => CaptureClass::Updates,
                "assign" => CaptureClass::Assigns,
                _ => CaptureClass::Never,
            };
            properties.push(NodeProperties {
                may_join: capture != CaptureClass::Never,
                capture,
                needs_transfer: ["brought", "recv", "with"].contains(&kind),
                runs_if_dead: ["recv", "with"].contains(&kind),
                is_received: ["recv", "with", "fed"].contains(&kind),
                group: (names.len() - usize::from(kind == "with")) as u32,
                is_loop_boundary: false,
                frame: 0,
                sends: kind == "send",
            });
            names.push(name);
        }
        let order: Vec<u32> = (0..names.len() as u32).collect();
        let lines = find(&order, &waits, &properties, FxHashMap::default()).into_iter().map(|nodes| {
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
    fn updates_come_late_and_assignments_last() {
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
    fn few_kernels_are_not_a_segment() {
        check("a(kernel):\nb(kernel): a\nc(kernel): b\nd(shape): c\ne(shape): d", expect![[""]]);
    }

    #[test]
    fn a_kernel_does_not_wait_for_the_receive_of_another() {
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
    fn receives_that_end_together_count_as_one() {
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
    fn fed_values_are_available_from_the_start() {
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
    fn nodes_that_need_no_kernels_run_ahead_of_segments() {
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
    fn kernels_that_depend_on_different_receives_are_in_different_segments() {
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
    fn a_send_does_not_wait_for_kernels_after_its_producer() {
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
    fn a_node_between_two_kernels_splits_the_segment() {
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
    fn kernels_wait_for_transfers_between_memories() {
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
    fn variables_are_updated_after_they_are_read() {
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
    fn too_many_receives_give_no_segments_in_short_time() {
        let (mut waits, mut properties) = (Vec::<SmallVec<[u32; 4]>>::new(), Vec::new());
        for i in 0..100_000u32 {
            let is_kernel = i % 2 == 1;
            waits.push((is_kernel && i > 2).then(|| [i - 1, i - 2]).into_iter().flatten().collect());
            let capture = if is_kernel { CaptureClass::Work } else { CaptureClass::Never };
            let node_properties = NodeProperties {
                may_join: is_kernel,
                capture,
                needs_transfer: !is_kernel,
                ..NodeProperties::default()
            };
            properties.push(NodeProperties { group: i, ..node_properties });
        }
        let order: Vec<u32> = (0..100_000).collect();
        assert_eq!(find(&order, &waits, &properties, FxHashMap::default()), Vec::<Vec<u32>>::new());
    }
}
