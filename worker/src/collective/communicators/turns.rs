//! The order in which a member starts the reductions of a communicator: step by step, in turns that rank 0 assigns, and
//! within a step in the order of the plan. The library matches the reductions of the members by their order, so the
//! reductions of concurrent steps must not mix.

use device::Error;
use graph::Code;
use std::collections::BTreeMap;

/// The member's reductions in one communicator, with the state of the communicator. `R` is a reduction.
#[derive(Debug)]
pub(crate) struct Turns<R> {
    /// True for rank 0, which assigns the turns.
    gives: bool,
    state: State,
    /// The number of the attempt to create a communicator; events of earlier attempts are ignored.
    attempt: u64,
    /// The steps with reductions that have not ended, by the order of their first reductions here.
    steps: Vec<(i64, Turn<R>)>,
    /// The number of the turn whose reductions may start.
    current: u64,
    /// Number of turns that rank 0 has assigned in this epoch.
    given: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The member has no communicator; `last` is the epoch of its last one.
    None {
        last: u64,
    },
    /// The leader has been asked for an epoch after `last`.
    Entering {
        last: u64,
    },
    /// The members connect to each other.
    Connecting {
        epoch: u64,
    },
    Ready {
        epoch: u64,
    },
    /// The group cannot have a communicator.
    Refused {
        reason: String,
    },
}

/// The reductions of a step.
#[derive(Debug)]
struct Turn<R> {
    /// The epoch and the number of the step's turn, once it is assigned.
    number: Option<(u64, u64)>,
    /// The reductions that have been requested and have not started, by their numbers in the order.
    waiting: BTreeMap<usize, R>,
    /// The number of the next reduction to start.
    next: usize,
    count: usize,
    /// The reductions that have started and have not ended, with their numbers.
    running: Vec<(usize, R)>,
}

/// An action that follows from an event.
#[derive(Debug, PartialEq)]
pub(crate) enum Action<R> {
    /// Ask the leader for the epoch after `last`, and connect with the other members.
    Enter { attempt: u64, last: u64 },
    /// Tell the other members the number of a step's turn.
    Give { step_id: i64, epoch: u64, number: u64 },
    /// Start a reduction.
    Start { attempt: u64, reduction: R },
    /// Carry out a reduction through host memory, for this reason.
    UseHost { reduction: R, reason: String },
    /// End a reduction with an error.
    Fail { reduction: R, error: Error },
    /// Abort the communicator.
    Abort,
    /// Remove a step, because all its reductions have ended.
    EndStep { step_id: i64 },
}

impl<R: Clone> Turns<R> {
    /// Creates the turns of the member with this rank. `last` is the last epoch that the member has been in, or 0.
    pub(crate) fn new(rank: usize, last: u64) -> Turns<R> {
        Turns {
            gives: rank == 0,
            state: State::None { last },
            attempt: 0,
            steps: Vec::new(),
            current: 0,
            given: 0,
        }
    }

    /// Returns the last epoch that the member has been in, or 0.
    pub(crate) fn last(&self) -> u64 {
        match self.state {
            State::None { last } | State::Entering { last } => last,
            State::Connecting { epoch } | State::Ready { epoch } => epoch,
            State::Refused { .. } => 0,
        }
    }

    /// Returns whether `attempt` is the present attempt.
    pub(crate) fn is_current(&self, attempt: u64) -> bool {
        self.attempt == attempt
    }

    /// Returns the first reduction that has not ended, in the order of the steps.
    pub(crate) fn first(&self) -> Option<&R> {
        self.steps.iter().find_map(|(_, turn)| turn.any())
    }

    /// Returns a reduction of the step that has not ended; `None` if there is none.
    pub(crate) fn any_of(&self, step_id: i64) -> Option<&R> {
        self.steps.iter().find(|(id, _)| *id == step_id).and_then(|(_, turn)| turn.any())
    }

    /// Returns whether the step has reductions that have not ended.
    pub(crate) fn has_step(&self, step_id: i64) -> bool {
        self.steps.iter().any(|(id, _)| *id == step_id)
    }

    /// Adds a reduction: number `index` of the `count` of its step.
    pub(crate) fn add(&mut self, step_id: i64, index: usize, count: usize, reduction: R) -> Vec<Action<R>> {
        if let State::Refused { reason } = &self.state {
            return vec![Action::UseHost { reduction, reason: reason.clone() }];
        }
        if !self.has_step(step_id) {
            self.steps.push((step_id, Turn::new(count)));
        }
        let Some(turn) = self.turn_mut(step_id) else { return Vec::new() };
        if turn.count != count || index < turn.next || turn.waiting.contains_key(&index) {
            let text = format!("two reductions of one step have number {index} in the order of their device");
            return vec![Action::Fail { reduction, error: Error::internal(text) }];
        }
        turn.waiting.insert(index, reduction);
        if let State::None { last } = self.state {
            self.state = State::Entering { last };
            self.attempt += 1;
            return vec![Action::Enter { attempt: self.attempt, last }];
        }
        self.advance()
    }

    /// Records that the leader has begun an epoch. Returns whether the attempt is the present one and continues.
    pub(crate) fn entered(&mut self, attempt: u64, epoch: u64) -> bool {
        let is_current = self.attempt == attempt && matches!(self.state, State::Entering { .. });
        if is_current {
            self.state = State::Connecting { epoch };
        }
        is_current
    }

    /// Records that the group cannot have a communicator.
    pub(crate) fn refuse(&mut self, attempt: u64, reason: String) -> Vec<Action<R>> {
        if self.attempt != attempt || !matches!(self.state, State::Entering { .. }) {
            return Vec::new();
        }
        self.state = State::Refused { reason: reason.clone() };
        let mut actions = Vec::new();
        for (step_id, turn) in std::mem::take(&mut self.steps) {
            let reductions = turn.waiting.into_values();
            actions.extend(reductions.map(|reduction| Action::UseHost { reduction, reason: reason.clone() }));
            actions.push(Action::EndStep { step_id });
        }
        actions
    }

    /// Records that all members have connected.
    pub(crate) fn connect(&mut self, attempt: u64) -> Vec<Action<R>> {
        match self.state {
            State::Connecting { epoch } if self.attempt == attempt => {
                self.state = State::Ready { epoch };
                self.advance()
            }
            _ => Vec::new(),
        }
    }

    /// Records the turn that rank 0 has assigned to a step of this member.
    pub(crate) fn take_turn(&mut self, step_id: i64, epoch: u64, number: u64) -> Vec<Action<R>> {
        if let Some(turn) = self.turn_mut(step_id) {
            turn.number = Some((epoch, number));
        }
        self.advance()
    }

    /// Records that a reduction has ended. Returns the reduction, unless it has failed before, and the actions that
    /// follow.
    pub(crate) fn end(&mut self, attempt: u64, step_id: i64, index: usize) -> (Option<R>, Vec<Action<R>>) {
        if self.attempt != attempt {
            return (None, Vec::new());
        }
        let Some(turn) = self.turn_mut(step_id) else { return (None, Vec::new()) };
        let Some(place) = turn.running.iter().position(|(of, _)| *of == index) else {
            return (None, Vec::new());
        };
        let (_, reduction) = turn.running.swap_remove(place);
        let has_ended = turn.next == turn.count && turn.running.is_empty();
        let mut actions = self.advance();
        if has_ended {
            self.steps.retain(|(id, _)| *id != step_id);
            actions.push(Action::EndStep { step_id });
        }
        (Some(reduction), actions)
    }

    /// Gives up the communicator if `attempt`, the present attempt, has failed: all its reductions fail, and the next
    /// reduction begins a new attempt.
    pub(crate) fn fail(&mut self, attempt: u64, error: &Error) -> Vec<Action<R>> {
        match self.attempt == attempt {
            true => self.give_up(error, None),
            false => Vec::new(),
        }
    }

    /// Gives up the communicator because a step with reductions has failed. The reductions of other steps fail with
    /// `Aborted`.
    pub(crate) fn fail_step(&mut self, step_id: i64, error: &Error) -> Vec<Action<R>> {
        match self.has_step(step_id) {
            true => self.give_up(error, Some(step_id)),
            false => Vec::new(),
        }
    }

    /// Gives up the communicator in any attempt.
    pub(crate) fn fail_any(&mut self, error: &Error) -> Vec<Action<R>> {
        self.give_up(error, None)
    }

    fn give_up(&mut self, error: &Error, failed: Option<i64>) -> Vec<Action<R>> {
        let is_there = matches!(self.state, State::Connecting { .. } | State::Ready { .. });
        self.state = State::None { last: self.last() };
        // Later events of this attempt are ignored.
        self.attempt += 1;
        (self.current, self.given) = (0, 0);
        let mut actions = Vec::new();
        if is_there {
            actions.push(Action::Abort);
        }
        for (step_id, turn) in std::mem::take(&mut self.steps) {
            let error = match failed {
                Some(failed) if failed != step_id => {
                    let text = format!("another step that used the communicator has failed: {error}");
                    Error::new(Code::Aborted, text)
                }
                _ => error.clone(),
            };
            let reductions = turn.running.into_iter().map(|(_, reduction)| reduction);
            let reductions = reductions.chain(turn.waiting.into_values());
            actions.extend(reductions.map(|reduction| Action::Fail { reduction, error: error.clone() }));
            actions.push(Action::EndStep { step_id });
        }
        actions
    }

    /// Returns a description of the event that the reductions of a step await.
    pub(crate) fn describe(&self, step_id: i64) -> String {
        let turn = self.steps.iter().find(|(id, _)| *id == step_id).map(|(_, turn)| turn);
        match (&self.state, turn) {
            (State::Entering { last }, _) => {
                format!("waits for the members to enter an epoch after {last} of their communicator")
            }
            (State::Connecting { epoch }, _) => {
                format!("waits for the members to connect in epoch {epoch} of their communicator")
            }
            (State::Ready { epoch }, Some(Turn { number: None, .. })) => {
                format!("waits for rank 0 to give the step its turn in epoch {epoch} of the communicator")
            }
            (State::Ready { epoch }, Some(Turn { running, number: Some((_, number)), .. })) => {
                match running.len() {
                    0 => format!(
                        "waits for turn {number} of epoch {epoch} of the communicator; turn {} is not over",
                        self.current
                    ),
                    _ => format!("a member has not started its part in epoch {epoch} of the communicator"),
                }
            }
            _ => "has no communicator".into(),
        }
    }

    /// Assigns turns on rank 0, and starts the reductions that may start.
    fn advance(&mut self) -> Vec<Action<R>> {
        let State::Ready { epoch } = self.state else { return Vec::new() };
        let mut actions = Vec::new();
        if self.gives {
            for (step_id, turn) in self.steps.iter_mut().filter(|(_, turn)| turn.number.is_none()) {
                turn.number = Some((epoch, self.given));
                actions.push(Action::Give { step_id: *step_id, epoch, number: self.given });
                self.given += 1;
            }
        }
        let is_foreign = |turn: &Turn<R>| turn.number.is_some_and(|(of, _)| of != epoch);
        if let Some((_, turn)) = self.steps.iter().find(|(_, turn)| is_foreign(turn)) {
            let of = turn.number.map_or(0, |(of, _)| of);
            let text = format!("rank 0 is in epoch {of} of the communicator, this member in epoch {epoch}");
            actions.extend(self.give_up(&Error::new(Code::Aborted, text), None));
            return actions;
        }
        let attempt = self.attempt;
        while let Some(turn) = self.current_turn(epoch) {
            while let Some(reduction) = turn.waiting.remove(&turn.next) {
                turn.running.push((turn.next, reduction.clone()));
                turn.next += 1;
                actions.push(Action::Start { attempt, reduction });
            }
            if turn.next < turn.count {
                break;
            }
            self.current += 1;
        }
        actions
    }

    fn current_turn(&mut self, epoch: u64) -> Option<&mut Turn<R>> {
        let number = Some((epoch, self.current));
        self.steps.iter_mut().map(|(_, turn)| turn).find(|turn| turn.number == number)
    }

    fn turn_mut(&mut self, step_id: i64) -> Option<&mut Turn<R>> {
        self.steps.iter_mut().find(|(id, _)| *id == step_id).map(|(_, turn)| turn)
    }
}

impl<R> Turn<R> {
    fn new(count: usize) -> Turn<R> {
        Turn { number: None, waiting: BTreeMap::new(), next: 0, count, running: Vec::new() }
    }

    fn any(&self) -> Option<&R> {
        self.running.first().map(|(_, reduction)| reduction).or_else(|| self.waiting.values().next())
    }
}

#[cfg(test)]
mod tests;
