//! Schedules of collectives: the elements that a member sends, receives and combines in each phase. A schedule is a
//! value, computed from the operation, the sizes and the member's rank.

use device::collective::Operation;
use graph::tensor::ALIGNMENT;
use std::ops::Range;

/// Largest input in bytes that every member of a reduction sends whole to every other member, in one phase instead of
/// two.
const MAX_ONE_SHOT: usize = 32 << 10;

/// The elements that a member exchanges with another member, whose rank is `peer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) peer: usize,
    pub(super) elements: Range<usize>,
    /// The transfer's number in the keys of TensorFlow's ring algorithms.
    pub(super) section: usize,
}

/// The tensor from which a phase sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Input,
    Output,
    /// All elements that the previous phase has combined.
    Combined,
}

/// The operation on the elements that a member has received in a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The member stores each transfer at its range of the output.
    Place,
    /// The member combines all transfers with its own input's elements at `input`, in the order of the ranks, and
    /// stores the result in the output from `output` on. The result is final if `is_final`.
    Combine { input: Range<usize>, output: usize, is_final: bool },
}

/// The parts of TensorFlow's key of a transfer that follow the key of the collective. Members of this implementation name
/// transfers by the number of the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForeignKey {
    /// The key has no further parts, because the schedule has no members of other implementations.
    None,
    /// The further parts are the number of the pass, 0 or 1, the section, and the sender's rank.
    Ring { pass: usize },
    /// The further parts are the subdivision, which is 0, and the ranks of sender and receiver.
    Tree,
    /// The further parts are the ranks of sender and receiver, without separators.
    Exchange,
}

/// One phase of a schedule. A member begins a phase when it has completed the phase before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) source: Source,
    pub(super) sends: Vec<Transfer>,
    /// The transfers that the member receives, in the order of the ranks; with [`Then::Place`] their ranges are those
    /// of the output.
    pub(super) receives: Vec<Transfer>,
    pub(super) then: Then,
    pub(super) foreign_key: ForeignKey,
}

/// One member's schedule of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    /// Elements of the input that the member copies to its output, and the position of the copy; `None` for a
    /// reduction.
    pub(super) copies: Option<(Range<usize>, usize)>,
    pub(super) phases: Vec<Phase>,
}

/// The position of a member in a group, and the sizes of its tensors in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) rank: usize,
    /// Number of members of the group.
    pub(super) size: usize,
    /// The rank of the source of a broadcast, or of the root.
    pub(super) source: Option<usize>,
    /// Number of elements of the input; of the output for a broadcast and a scatter.
    pub(super) count: usize,
    /// Number of bytes of an element.
    pub(super) width: usize,
}

impl Schedule {
    /// Returns the schedule of one member.
    pub(super) fn new(operation: Operation, member: Member) -> Schedule {
        let Member { rank, size, count, width, .. } = member;
        let all = 0..count;
        match operation {
            Operation::Reduce(_) if size <= 2 || count * width <= MAX_ONE_SHOT => {
                Schedule::of(vec![member.exchange(|_| all.clone(), &all, 0)])
            }
            Operation::Reduce(_) => {
                let chunk = |of: usize| chunk(count, size, width, of);
                let own = chunk(rank);
                let scatter = member.exchange(chunk, &own, own.start);
                Schedule::of(vec![scatter, member.share(Source::Combined, own, chunk)])
            }
            Operation::ReduceScatter(_) => {
                let chunk = |of: usize| row(count, size, of);
                Schedule::of(vec![member.exchange(chunk, &chunk(rank), 0)])
            }
            Operation::Gather => {
                let place = |of: usize| of * count..(of + 1) * count;
                let share = member.share(Source::Input, all.clone(), place);
                Schedule { copies: Some((all, rank * count)), phases: vec![share] }
            }
            Operation::AllToAll => {
                let row = |of: usize| row(count, size, of);
                let phase = Phase {
                    source: Source::Input,
                    sends: member.with_others(row),
                    receives: member.with_others(row),
                    then: Then::Place,
                    foreign_key: ForeignKey::Exchange,
                };
                Schedule { copies: Some((row(rank), rank * (count / size))), phases: vec![phase] }
            }
            Operation::Broadcast { is_source: true } => {
                let share =
                    Phase { receives: Vec::new(), ..member.share(Source::Input, all.clone(), |_| 0..0) };
                Schedule { copies: Some((all, 0)), phases: vec![share] }
            }
            Operation::Broadcast { is_source: false } | Operation::Scatter { is_root: false } => {
                Schedule::of(vec![member.receive(member.with_source(all))])
            }
            Operation::ReduceToRoot { is_root, .. } if size <= 2 || count * width <= MAX_ONE_SHOT => {
                let whole = member.exchange(|_| all.clone(), &all, 0);
                Schedule::of(vec![match is_root {
                    true => Phase { sends: Vec::new(), ..whole },
                    false => member.send(Source::Input, member.with_source(all)),
                }])
            }
            Operation::ReduceToRoot { is_root, .. } => {
                let chunk = |of: usize| chunk(count, size, width, of);
                let own = chunk(rank);
                let scatter = member.exchange(chunk, &own, own.start);
                let collect = match is_root {
                    true => member.receive(member.with_others(chunk)),
                    false => member.send(Source::Combined, member.with_source(own)),
                };
                Schedule::of(vec![scatter, collect])
            }
            Operation::GatherToRoot { is_root: true } => {
                let receives = member.with_others(|of| of * count..(of + 1) * count);
                Schedule { copies: Some((all, rank * count)), phases: vec![member.receive(receives)] }
            }
            Operation::GatherToRoot { is_root: false } => {
                Schedule::of(vec![member.send(Source::Input, member.with_source(all))])
            }
            Operation::Scatter { is_root: true } => {
                let row = |of: usize| of * count..(of + 1) * count;
                let sends = member.with_others(row);
                Schedule { copies: Some((row(rank), 0)), phases: vec![member.send(Source::Input, sends)] }
            }
            Operation::Join => Schedule::of(Vec::new()),
        }
    }

    /// Returns the schedule of one member of a group with members of TensorFlow, in which each task has one device:
    /// rings for reductions and gathers, a tree for broadcasts. `None` for operations that TensorFlow does not have.
    pub(super) fn foreign(operation: Operation, member: Member) -> Option<Schedule> {
        let Member { rank, size, count, .. } = member;
        let all = 0..count;
        Some(match operation {
            Operation::Reduce(_) => match size {
                1 => Schedule::new(operation, member),
                _ => member.ring_reduction(),
            },
            Operation::Gather => {
                let place = |of: usize| of * count..(of + 1) * count;
                let phase = |step: usize| {
                    let (sent, received) = (back(rank, step, size), back(rank, step + 1, size));
                    let elements = if step == 0 { all.clone() } else { place(sent) };
                    Phase {
                        source: if step == 0 { Source::Input } else { Source::Output },
                        sends: member.with((rank + 1) % size, elements, sent),
                        receives: member.with(back(rank, 1, size), place(received), received),
                        then: Then::Place,
                        foreign_key: ForeignKey::Ring { pass: 0 },
                    }
                };
                Schedule {
                    copies: Some((all.clone(), rank * count)),
                    phases: (0..size - 1).map(phase).collect(),
                }
            }
            Operation::Broadcast { is_source } => {
                let (parent, children) = member.tree();
                let sends =
                    children.into_iter().flat_map(|child| member.with(child, all.clone(), 0)).collect();
                let send = Phase { source: Source::Output, sends, ..member.receive(Vec::new()) };
                match is_source {
                    true => Schedule { copies: Some((all, 0)), phases: vec![send] },
                    false => {
                        let receives = parent.map(|parent| member.with(parent, all, 0)).unwrap_or_default();
                        Schedule::of(vec![member.receive(receives), send])
                    }
                }
            }
            Operation::AllToAll | Operation::Join => Schedule::new(operation, member),
            Operation::ReduceScatter(_)
            | Operation::ReduceToRoot { .. }
            | Operation::GatherToRoot { .. }
            | Operation::Scatter { .. } => return None,
        })
    }

    fn of(phases: Vec<Phase>) -> Schedule {
        Schedule { copies: None, phases }
    }
}

/// Returns the rank that is `steps` before `rank` in a ring of `size` members.
fn back(rank: usize, steps: usize, size: usize) -> usize {
    (rank + size - steps % size) % size
}

impl Member {
    /// Returns the schedule of a reduction in a ring: in the first pass each chunk travels round the ring and every
    /// member adds its own elements, in the second pass the results travel round. The chunks have the sizes of
    /// TensorFlow's.
    fn ring_reduction(&self) -> Schedule {
        let Member { rank, size, count, width, .. } = *self;
        let length = foreign_chunk(count, size, width);
        let chunk = |of: usize| (of * length).min(count)..((of + 1) * length).min(count);
        let phase = |pass: usize, source: Source, sent: usize, then: Then| {
            let received = back(sent, 1, size);
            Phase {
                source,
                sends: self.with((rank + 1) % size, chunk(sent), sent),
                receives: self.with(back(rank, 1, size), chunk(received), received),
                then,
                foreign_key: ForeignKey::Ring { pass },
            }
        };
        let adding = (0..size - 1).map(|step| {
            let sent = back(rank, step, size);
            let input = chunk(back(sent, 1, size));
            let then = Then::Combine { output: input.start, input, is_final: step == size - 2 };
            phase(0, if step == 0 { Source::Input } else { Source::Output }, sent, then)
        });
        let handing =
            (0..size - 1).map(|step| phase(1, Source::Output, back(rank + 1, step, size), Then::Place));
        Schedule::of(adding.chain(handing).collect())
    }

    /// Returns the member's parent and children in TensorFlow's binary tree of a broadcast. A source other than rank 0
    /// is the root, and sends to ranks 0 and 1 in addition to the children of its own rank.
    fn tree(&self) -> (Option<usize>, Vec<usize>) {
        let Member { rank, size, .. } = *self;
        let source = self.source.unwrap_or(0);
        let (parent, first) = match source {
            0 => (rank.checked_sub(1).map(|r| r / 2), 2 * rank + 1),
            _ => (Some((rank / 2).checked_sub(1).unwrap_or(source)), 2 * (rank + 1)),
        };
        let own = (source != 0 && rank == source).then_some([0, 1]).into_iter().flatten();
        let children = own.chain([first, first + 1]).filter(|&child| child < size && child != source);
        (parent.filter(|_| rank != source), children.collect())
    }

    /// Returns the phase in which the member sends each other member the elements that it combines, and combines the
    /// elements at `own`.
    fn exchange(&self, chunk: impl Fn(usize) -> Range<usize>, own: &Range<usize>, output: usize) -> Phase {
        Phase {
            source: Source::Input,
            sends: self.with_others(chunk),
            receives: self.with_others(|_| own.clone()),
            then: Then::Combine { input: own.clone(), output, is_final: true },
            foreign_key: ForeignKey::None,
        }
    }

    /// Returns the phase in which the member sends `own` to all others, and places the elements that they send.
    fn share(&self, source: Source, own: Range<usize>, place: impl Fn(usize) -> Range<usize>) -> Phase {
        Phase {
            source,
            sends: self.with_others(|_| own.clone()),
            receives: self.with_others(place),
            then: Then::Place,
            foreign_key: ForeignKey::None,
        }
    }

    /// Returns the phase in which the member only sends.
    fn send(&self, source: Source, sends: Vec<Transfer>) -> Phase {
        Phase { source, sends, ..self.receive(Vec::new()) }
    }

    /// Returns the phase in which the member only receives.
    fn receive(&self, receives: Vec<Transfer>) -> Phase {
        Phase {
            source: Source::Output,
            sends: Vec::new(),
            receives,
            then: Then::Place,
            foreign_key: ForeignKey::Tree,
        }
    }

    /// Returns the transfers with all other members that have elements, in the order of the ranks.
    fn with_others(&self, elements: impl Fn(usize) -> Range<usize>) -> Vec<Transfer> {
        let others = (0..self.size).filter(|&peer| peer != self.rank);
        let transfers = others.map(|peer| Transfer { peer, elements: elements(peer), section: 0 });
        transfers.filter(|transfer| !transfer.elements.is_empty()).collect()
    }

    /// Returns the transfer with the source or root, unless it is empty.
    fn with_source(&self, elements: Range<usize>) -> Vec<Transfer> {
        self.source.map(|source| self.with(source, elements, 0)).unwrap_or_default()
    }

    /// Returns the transfer with another member, unless it is empty.
    fn with(&self, peer: usize, elements: Range<usize>, section: usize) -> Vec<Transfer> {
        let transfer = Transfer { peer, elements, section };
        Some(transfer).into_iter().filter(|transfer| !transfer.elements.is_empty()).collect()
    }
}

/// Returns the elements that member `of` combines in a reduction of `count` elements. Every chunk begins at a multiple
/// of [`ALIGNMENT`] bytes, so that it can be sent from the input's memory; the sizes differ by at most [`ALIGNMENT`].
fn chunk(count: usize, size: usize, width: usize, of: usize) -> Range<usize> {
    let line = (ALIGNMENT / width).max(1);
    let lines = count.div_ceil(line);
    let start = |of: usize| (line * (of * (lines / size) + of.min(lines % size))).min(count);
    start(of)..start(of + 1)
}

/// Returns the number of elements of the chunks of TensorFlow's rings, of which the last are shorter. TensorFlow rounds
/// a chunk up to a multiple of 64 bytes, and adds 64 bytes to a chunk that already is such a multiple; it does neither
/// with a chunk of less than 64 bytes.
fn foreign_chunk(count: usize, size: usize, width: usize) -> usize {
    let bytes = count.div_ceil(size) * width;
    let added = if bytes < ALIGNMENT { ALIGNMENT - bytes } else { ALIGNMENT - bytes % ALIGNMENT };
    (bytes + added) / width
}

/// Returns row `of` of `size` rows of equal length.
fn row(count: usize, size: usize, of: usize) -> Range<usize> {
    let length = count / size;
    of * length..(of + 1) * length
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::collective::{Merge, Reduction};

    const SUM: Reduction = Reduction { merge: Merge::Add, is_mean: false };

    /// Runs all members' schedules on sets of ranks: each element of an input is the set of the member's rank and the
    /// element's position. Returns the outputs.
    fn simulate(
        operation: impl Fn(usize) -> Operation,
        size: usize,
        count: usize,
        output: usize,
    ) -> Vec<Vec<Vec<(usize, usize)>>> {
        run(size, count, output, |member| Schedule::new(operation(member.rank), member))
    }

    fn run(
        size: usize,
        count: usize,
        output: usize,
        schedule: impl Fn(Member) -> Schedule,
    ) -> Vec<Vec<Vec<(usize, usize)>>> {
        run_with_inputs(size, count, output, count, schedule)
    }

    fn run_with_inputs(
        size: usize,
        count: usize,
        output: usize,
        inputs: usize,
        schedule: impl Fn(Member) -> Schedule,
    ) -> Vec<Vec<Vec<(usize, usize)>>> {
        let member = |rank| Member { rank, size, source: Some(size / 2), count, width: 1 << 13 };
        let schedules: Vec<Schedule> = (0..size).map(|rank| schedule(member(rank))).collect();
        let input =
            |rank: usize| -> Vec<Vec<(usize, usize)>> { (0..inputs).map(|i| vec![(rank, i)]).collect() };
        let mut outputs = vec![vec![Vec::new(); output]; size];
        for (rank, schedule) in schedules.iter().enumerate() {
            if let Some((from, to)) = schedule.copies.clone() {
                let length = from.len();
                outputs[rank][to..to + length].clone_from_slice(&input(rank)[from]);
            }
        }
        for phase in 0..schedules.iter().map(|s| s.phases.len()).max().unwrap_or(0) {
            let before = outputs.clone();
            for (rank, schedule) in schedules.iter().enumerate() {
                let Some(own) = schedule.phases.get(phase) else { continue };
                let sent_to_rank = |peer: usize| {
                    let theirs = schedules[peer].phases.get(phase)?;
                    let sent = theirs.sends.iter().find(|t| t.peer == rank).map(|t| t.elements.clone());
                    sent.map(|range| match theirs.source {
                        Source::Input => input(peer)[range].to_vec(),
                        Source::Output | Source::Combined => before[peer][range].to_vec(),
                    })
                };
                for peer in (0..size).filter(|&p| p != rank) {
                    assert_eq!(sent_to_rank(peer).is_some(), own.receives.iter().any(|t| t.peer == peer));
                }
                match &own.then {
                    Then::Place => {
                        for transfer in &own.receives {
                            let elements = sent_to_rank(transfer.peer).unwrap_or_default();
                            outputs[rank][transfer.elements.clone()].clone_from_slice(&elements);
                        }
                    }
                    Then::Combine { input: range, output, .. } => {
                        for (i, at) in range.clone().enumerate() {
                            outputs[rank][output + i] = (0..size)
                                .flat_map(|peer| match peer == rank {
                                    true => input(rank)[at].clone(),
                                    false => {
                                        sent_to_rank(peer).map(|sent| sent[i].clone()).unwrap_or_default()
                                    }
                                })
                                .collect();
                        }
                    }
                }
            }
        }
        outputs
    }

    #[test]
    fn a_reduction_combines_every_element_of_all_members_in_the_order_of_the_ranks() {
        for size in 1..=9 {
            for count in [0, 1, 2, 7, 8, 9, 64, 100] {
                let all: Vec<Vec<(usize, usize)>> =
                    (0..count).map(|i| (0..size).map(|rank| (rank, i)).collect()).collect();
                let outputs = simulate(|_| Operation::Reduce(SUM), size, count, count);
                assert_eq!(outputs, vec![all.clone(); size], "{size} members, {count} elements");
                let rows = count / size;
                if count % size == 0 {
                    let outputs = simulate(|_| Operation::ReduceScatter(SUM), size, count, rows);
                    let parts: Vec<_> =
                        (0..size).map(|rank| all[rank * rows..(rank + 1) * rows].to_vec()).collect();
                    assert_eq!(outputs, parts);
                }
            }
        }
    }

    #[test]
    fn gathers_broadcasts_and_exchanges_move_every_element_to_its_place() {
        for size in 1..=9 {
            for rows in [0, 1, 3] {
                let outputs = simulate(|_| Operation::Gather, size, rows, rows * size);
                let all: Vec<Vec<(usize, usize)>> =
                    (0..size).flat_map(|rank| (0..rows).map(move |i| vec![(rank, i)])).collect();
                assert_eq!(outputs, vec![all; size]);
                let is_source = |rank| Operation::Broadcast { is_source: rank == size / 2 };
                let outputs = simulate(is_source, size, rows, rows);
                let sent: Vec<Vec<(usize, usize)>> = (0..rows).map(|i| vec![(size / 2, i)]).collect();
                assert_eq!(outputs, vec![sent; size]);
                let outputs = simulate(|_| Operation::AllToAll, size, rows * size, rows * size);
                for (rank, output) in outputs.iter().enumerate() {
                    let expected: Vec<Vec<(usize, usize)>> = (0..size)
                        .flat_map(|peer| (0..rows).map(move |i| vec![(peer, rank * rows + i)]))
                        .collect();
                    assert_eq!(*output, expected);
                }
            }
        }
    }

    #[test]
    fn roots_get_and_give_every_element() {
        for size in 1..=9 {
            let root = size / 2;
            for count in [0, 1, 2, 7, 8, 9, 64, 100] {
                let reduce = |rank| Operation::ReduceToRoot { reduction: SUM, is_root: rank == root };
                let outputs = simulate(reduce, size, count, count);
                let all: Vec<Vec<(usize, usize)>> =
                    (0..count).map(|i| (0..size).map(|rank| (rank, i)).collect()).collect();
                assert_eq!(outputs[root], all, "{size} members, {count} elements");
                let gather = |rank| Operation::GatherToRoot { is_root: rank == root };
                let outputs = simulate(gather, size, count, count * size);
                let all: Vec<Vec<(usize, usize)>> =
                    (0..size).flat_map(|rank| (0..count).map(move |i| vec![(rank, i)])).collect();
                assert_eq!(outputs[root], all);
                let scatter = |rank| Operation::Scatter { is_root: rank == root };
                let outputs = run_with_inputs(size, count, count, count * size, |member| {
                    Schedule::new(scatter(member.rank), member)
                });
                for (rank, output) in outputs.iter().enumerate() {
                    let row: Vec<Vec<(usize, usize)>> =
                        (0..count).map(|i| vec![(root, rank * count + i)]).collect();
                    assert_eq!(*output, row);
                }
            }
        }
    }

    #[test]
    fn rings_move_and_combine_every_element_once() {
        for size in 1..=9 {
            for count in [0, 1, 2, 7, 8, 9, 100] {
                let foreign = |operation: Operation, output: usize| {
                    run(size, count, output, |member| {
                        Schedule::foreign(operation, member).unwrap_or_else(|| panic!())
                    })
                };
                for output in foreign(Operation::Reduce(SUM), count) {
                    for (i, mut terms) in output.into_iter().enumerate() {
                        terms.sort_unstable();
                        assert_eq!(terms, (0..size).map(|rank| (rank, i)).collect::<Vec<_>>());
                    }
                }
                let all: Vec<Vec<(usize, usize)>> =
                    (0..size).flat_map(|rank| (0..count).map(move |i| vec![(rank, i)])).collect();
                assert_eq!(foreign(Operation::Gather, count * size), vec![all; size]);
            }
        }
    }

    #[test]
    fn chunks_begin_at_aligned_bytes_and_cover_all_elements() {
        for (size, width) in [(2, 4), (3, 8), (5, 2), (7, 1)] {
            for count in [0, 1, 63, 64, 1000, 4099] {
                let chunks: Vec<Range<usize>> = (0..size).map(|of| chunk(count, size, width, of)).collect();
                assert!(
                    chunks.iter().all(|chunk| (chunk.start * width) % ALIGNMENT == 0 || chunk.is_empty())
                );
                assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert_eq!((chunks[0].start, chunks[size - 1].end), (0, count));
            }
        }
    }

    /// The expected sizes were observed between TensorFlow's servers.
    #[test]
    fn chunks_of_rings_have_the_sizes_of_tensorflow() {
        for (count, sizes) in [(4099, [8256, 8140]), (600_000, [1_200_064, 1_199_936])] {
            let member = Member { rank: 0, size: 2, source: None, count, width: 4 };
            let phases = member.ring_reduction().phases;
            let sent: Vec<usize> = phases.iter().map(|phase| phase.sends[0].elements.len() * 4).collect();
            assert_eq!(sent, sizes);
        }
    }

    #[test]
    fn every_member_of_a_tree_receives_from_the_member_that_sends_to_it() {
        for size in 1..=33 {
            for source in 0..size {
                let member = |rank| Member { rank, size, source: Some(source), count: 1, width: 4 };
                for rank in 0..size {
                    let (parent, children) = member(rank).tree();
                    assert_eq!(parent.is_none(), rank == source);
                    assert!(parent.is_none_or(|parent| member(parent).tree().1.contains(&rank)));
                    for child in children {
                        assert_eq!(
                            member(child).tree().0,
                            Some(rank),
                            "{size} members, source {source}, {child}"
                        );
                    }
                }
            }
        }
    }
}
