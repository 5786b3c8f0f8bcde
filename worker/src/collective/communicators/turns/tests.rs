//! Tests of the turns, with a library that may be slow, fail or hang.

use super::super::epochs::{Enter, Entered, Epochs};
use super::*;
use graph::{DeviceName, TaskName};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;

/// A reduction: its step and its number in the order.
type Reduction = (i64, usize);

fn starts(actions: &[Action<Reduction>]) -> Vec<Reduction> {
    let started = actions.iter().filter_map(|action| match action {
        Action::Start { reduction, .. } => Some(*reduction),
        _ => None,
    });
    started.collect()
}

fn lost() -> Error {
    Error::new(Code::Unavailable, "a member is lost")
}

/// Returns the turns of a member that has added the first of the two reductions of step 1 and has connected in epoch 1,
/// and the actions that follow from the connection.
fn ready(rank: usize) -> (Turns<Reduction>, Vec<Action<Reduction>>) {
    let mut turns = Turns::new(rank, 0);
    assert_eq!(turns.add(1, 0, 2, (1, 0)), [Action::Enter { attempt: 1, last: 0 }]);
    assert!(turns.entered(1, 1));
    let actions = turns.connect(1);
    (turns, actions)
}

#[test]
fn rank_0_gives_the_turn_and_starts() {
    let (mut turns, actions) = ready(0);
    let give = Action::Give { step_id: 1, epoch: 1, number: 0 };
    assert_eq!(actions, [give, Action::Start { attempt: 1, reduction: (1, 0) }]);
    assert_eq!(starts(&turns.add(1, 1, 2, (1, 1))), [(1, 1)]);
    // The second step has its turn already, because all reductions of the first have started.
    assert_eq!(starts(&turns.add(2, 0, 1, (2, 0))), [(2, 0)]);
}

#[test]
fn other_ranks_wait_for_their_turn_and_keep_the_order_of_the_plan() {
    let (mut turns, actions) = ready(1);
    assert_eq!(actions, []);
    assert_eq!(turns.add(2, 0, 1, (2, 0)), []);
    // Rank 0 has assigned the first turn to step 2.
    assert_eq!(turns.take_turn(1, 1, 1), []);
    assert_eq!(starts(&turns.take_turn(2, 1, 0)), [(2, 0), (1, 0)]);
    assert_eq!(starts(&turns.add(1, 1, 2, (1, 1))), [(1, 1)]);
}

#[test]
fn a_reduction_that_comes_early_waits_for_those_before_it() {
    let mut turns = Turns::new(0, 0);
    turns.add(1, 1, 2, (1, 1));
    turns.entered(1, 1);
    assert_eq!(starts(&turns.connect(1)), []);
    assert_eq!(starts(&turns.add(1, 0, 2, (1, 0))), [(1, 0), (1, 1)]);
}

#[test]
fn a_failed_step_aborts_the_communicator_and_the_next_enters_a_later_epoch() {
    let (mut turns, _) = ready(0);
    turns.add(2, 0, 1, (2, 0));
    let actions = turns.fail_step(1, &lost());
    let [Action::Abort, Action::Fail { reduction: (1, 0), error }, Action::EndStep { step_id: 1 }, other, _] =
        &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!(*error, lost());
    assert!(matches!(other, Action::Fail { reduction: (2, 0), error } if error.code() == Code::Aborted));
    assert_eq!(turns.end(1, 1, 0), (None, vec![]));
    assert_eq!(turns.add(3, 0, 1, (3, 0)), [Action::Enter { attempt: 3, last: 1 }]);
}

#[test]
fn a_refused_group_uses_the_host_at_once() {
    let mut turns = Turns::new(0, 0);
    turns.add(1, 0, 2, (1, 0));
    let host = |reduction| Action::UseHost { reduction, reason: "one GPU twice".to_owned() };
    let actions = turns.refuse(1, "one GPU twice".to_owned());
    assert_eq!(actions, [host((1, 0)), Action::EndStep { step_id: 1 }]);
    assert_eq!(turns.add(1, 1, 2, (1, 1)), [host((1, 1))]);
}

#[test]
fn events_of_an_earlier_attempt_are_ignored() {
    let mut turns = Turns::new(0, 0);
    turns.add(1, 0, 1, (1, 0));
    turns.fail(1, &lost());
    assert!(!turns.entered(1, 1));
    assert_eq!((turns.connect(1), turns.fail(1, &lost())), (vec![], vec![]));
    assert_eq!(turns.refuse(1, String::new()), []);
}

#[test]
fn members_in_different_epochs_fail_instead_of_waiting() {
    let (mut turns, _) = ready(1);
    let actions = turns.take_turn(1, 2, 0);
    assert!(matches!(&actions[..], [Action::Abort, Action::Fail { .. }, Action::EndStep { step_id: 1 }]));
}

/// An event that has not been delivered to its member yet.
#[derive(Clone, Debug)]
enum Event {
    Add(Reduction, usize),
    Entered(u64, Result<Entered, ()>),
    Connected(u64),
    LibraryFails(u64),
    Turn(i64, u64, u64),
    Ended(u64, Reduction),
    StepFails(i64),
}

/// The library's state of the communicator of one epoch.
#[derive(Default)]
struct Communicator {
    connected: BTreeSet<usize>,
    /// The reductions that each member has started, in order.
    started: Vec<Vec<Reduction>>,
    /// Number of reductions that all members have started.
    completed: usize,
    hangs: bool,
    has_failed: bool,
}

struct Simulation {
    random: StdRng,
    members: Vec<Turns<Reduction>>,
    epochs: Epochs<u32>,
    /// For each member, the attempt of each call to the leader.
    calls: Vec<(usize, u64)>,
    communicators: BTreeMap<u64, Communicator>,
    /// For each member, the epoch and the attempt of its side of a communicator.
    sides: Vec<Option<(u64, u64)>>,
    events: Vec<(usize, Event)>,
    counts: BTreeMap<i64, usize>,
    ended: Vec<BTreeMap<Reduction, bool>>,
    failed_steps: BTreeSet<i64>,
    is_library_faulty: bool,
}

impl Simulation {
    fn run(seed: u64, is_library_faulty: bool) -> Simulation {
        let mut random = StdRng::seed_from_u64(seed);
        let (size, steps) = (random.random_range(2..5), random.random_range(1..5));
        let mut simulation = Simulation {
            members: (0..size).map(|rank| Turns::new(rank, 0)).collect(),
            epochs: Epochs::default(),
            calls: Vec::new(),
            communicators: BTreeMap::new(),
            sides: vec![None; size],
            events: Vec::new(),
            counts: (1..=steps).map(|step| (step, random.random_range(1..4))).collect(),
            ended: vec![BTreeMap::new(); size],
            failed_steps: BTreeSet::new(),
            is_library_faulty,
            random,
        };
        for (&step, &count) in &simulation.counts {
            let all = (0..size).flat_map(|member| (0..count).map(move |index| (member, index)));
            simulation.events.extend(all.map(|(member, index)| (member, Event::Add((step, index), count))));
        }
        while simulation.advance() {}
        simulation
    }

    /// Delivers an event, chosen at random. If only a hanging library is left, a deadline fails its steps.
    fn advance(&mut self) -> bool {
        if self.events.is_empty() {
            let open = |(member, ended): (usize, &BTreeMap<Reduction, bool>)| {
                let all = self.counts.iter().flat_map(|(&step, &count)| (0..count).map(move |i| (step, i)));
                all.filter(|reduction| !ended.contains_key(reduction)).map(|r| (member, r)).next()
            };
            let waiting = self.ended.iter().enumerate().find_map(open);
            let Some((_, (step, _))) = waiting else { return false };
            assert!(self.is_library_faulty, "step {step} waits for ever");
            assert!(self.failed_steps.insert(step), "step {step} waits for ever after its failure");
            self.events.extend((0..self.members.len()).map(|member| (member, Event::StepFails(step))));
        }
        let next = self.random.random_range(0..self.events.len());
        let (member, event) = self.events.swap_remove(next);
        let turns = &mut self.members[member];
        let actions = match event.clone() {
            Event::Add(reduction, _) if self.failed_steps.contains(&reduction.0) => {
                // A node does not start in a step that has failed.
                self.ended[member].entry(reduction).or_insert(false);
                Vec::new()
            }
            Event::Add(reduction, count) => turns.add(reduction.0, reduction.1, count, reduction),
            Event::Entered(attempt, Ok(Entered::Key { epoch, .. })) => {
                if turns.entered(attempt, epoch) {
                    self.connect(member, attempt, epoch);
                }
                Vec::new()
            }
            Event::Entered(attempt, Ok(Entered::Create { epoch })) => {
                self.enter(member, attempt, 0, Some((epoch, vec![epoch as u8])));
                Vec::new()
            }
            Event::Entered(_, Ok(Entered::Refused(reason))) => panic!("{reason}"),
            Event::Entered(attempt, Err(())) => turns.fail(attempt, &lost()),
            Event::Connected(attempt) => turns.connect(attempt),
            Event::LibraryFails(attempt) => turns.fail(attempt, &lost()),
            Event::Turn(step, _, _) if self.failed_steps.contains(&step) => Vec::new(),
            Event::Turn(step, ..) if !turns.has_step(step) => {
                // The turn waits until the member has a reduction of the step.
                self.events.push((member, event));
                Vec::new()
            }
            Event::Turn(step, epoch, number) => turns.take_turn(step, epoch, number),
            Event::Ended(attempt, reduction) => {
                let (ended, actions) = turns.end(attempt, reduction.0, reduction.1);
                if let Some(reduction) = ended {
                    self.ended[member].insert(reduction, true);
                }
                actions
            }
            Event::StepFails(step) => turns.fail_step(step, &lost()),
        };
        actions.into_iter().for_each(|action| self.perform(member, action));
        true
    }

    fn perform(&mut self, member: usize, action: Action<Reduction>) {
        match action {
            Action::Enter { attempt, last } => self.enter(member, attempt, last, None),
            Action::Give { step_id, epoch, number } => {
                let others =
                    (1..self.members.len()).map(|other| (other, Event::Turn(step_id, epoch, number)));
                self.events.extend(others);
            }
            Action::Start { reduction, .. } => self.start(member, reduction),
            Action::UseHost { reduction, reason } => panic!("{reduction:?}: {reason}"),
            Action::Fail { reduction, .. } => {
                self.ended[member].insert(reduction, false);
                if self.failed_steps.insert(reduction.0) {
                    let all = 0..self.members.len();
                    self.events.extend(all.map(|member| (member, Event::StepFails(reduction.0))));
                }
            }
            Action::Abort => {
                if let Some((epoch, _)) = self.sides[member].take()
                    && let Some(communicator) = self.communicators.get_mut(&epoch)
                {
                    communicator.has_failed = true;
                }
            }
            Action::EndStep { .. } => {}
        }
    }

    fn enter(&mut self, member: usize, attempt: u64, after: u64, offer: Option<(u64, Vec<u8>)>) {
        let task = TaskName::new("worker", member as u32);
        let enter = Enter {
            session: "s".into(),
            group: (1, false),
            size: self.members.len(),
            device: DeviceName::new(&task, "GPU", 0),
            identity: format!("gpu {member}"),
            after,
            offer,
            step_id: 0,
        };
        let caller = self.calls.len() as u32;
        self.calls.push((member, attempt));
        for (caller, answer) in self.epochs.enter(enter, caller, &TaskName::new("worker", 0)) {
            let (member, attempt) = self.calls[caller as usize];
            self.events.push((member, Event::Entered(attempt, answer.map_err(drop))));
        }
    }

    fn connect(&mut self, member: usize, attempt: u64, epoch: u64) {
        let size = self.members.len();
        let is_faulty = self.is_library_faulty;
        let random = &mut self.random;
        let communicator = self.communicators.entry(epoch).or_insert_with(|| Communicator {
            started: vec![Vec::new(); size],
            hangs: is_faulty && random.random_bool(0.3),
            ..Communicator::default()
        });
        self.sides[member] = Some((epoch, attempt));
        communicator.connected.insert(member);
        if is_faulty && random.random_bool(0.1) {
            self.events.push((member, Event::LibraryFails(attempt)));
        } else if communicator.connected.len() == size && !communicator.hangs {
            let sides = self.sides.iter().enumerate().filter_map(|(member, side)| {
                side.filter(|(of, _)| *of == epoch).map(|(_, attempt)| (member, attempt))
            });
            self.events.extend(sides.map(|(member, attempt)| (member, Event::Connected(attempt))));
        }
    }

    /// Starts a member's part of a reduction. The reduction ends when all members have started their parts; parts that
    /// start together must belong to the same reduction.
    fn start(&mut self, member: usize, reduction: Reduction) {
        let Some((epoch, _)) = self.sides[member] else { panic!("member {member} has no communicator") };
        let Some(communicator) = self.communicators.get_mut(&epoch) else { panic!("no epoch {epoch}") };
        communicator.started[member].push(reduction);
        let common = communicator.started.iter().map(Vec::len).min().unwrap_or(0);
        for number in communicator.completed..common {
            let parts: BTreeSet<Reduction> = communicator.started.iter().map(|parts| parts[number]).collect();
            assert_eq!(parts.len(), 1, "members mix reductions: {parts:?}");
            let reduction = communicator.started[0][number];
            for (member, side) in self.sides.iter().enumerate() {
                let Some((of, attempt)) = *side else { continue };
                if of == epoch && !communicator.has_failed {
                    self.events.push((member, Event::Ended(attempt, reduction)));
                }
            }
        }
        communicator.completed = common;
    }
}

#[test]
fn all_members_start_the_same_reductions_in_one_order() {
    for seed in 0..3000 {
        let simulation = Simulation::run(seed, false);
        assert!(simulation.failed_steps.is_empty(), "seed {seed}: {:?}", simulation.failed_steps);
        let has_ended = simulation.ended.iter().all(|ended| ended.values().all(|&has_ended| has_ended));
        assert!(has_ended, "seed {seed}");
    }
}

#[test]
fn every_reduction_ends_with_a_library_that_is_slow_fails_or_hangs() {
    let (mut failed, mut ended) = (0, 0);
    for seed in 0..3000 {
        let simulation = Simulation::run(seed, true);
        for outcomes in &simulation.ended {
            failed += outcomes.values().filter(|&&has_ended| !has_ended).count();
            ended += outcomes.values().filter(|&&has_ended| has_ended).count();
        }
    }
    assert!(failed > 1000 && ended > 1000, "{failed} failed, {ended} ended");
}
