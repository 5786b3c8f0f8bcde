//! Simulated groups: register, schedules and courses as values, with messages that are delayed and overtake each other,
//! requests that are sent twice, and a member that dies. Each seed determines one group, which runs a step that may
//! fail and then one that must succeed.
//!
//! Elements are never delivered twice: links are streams, and a link that breaks ends its steps. Requests to the leader
//! may be delivered twice, because a caller repeats a request whose outcome is unknown.

mod network;

use super::course::{Course, Plan, names_of};
use super::register::{Agree, Agreement, BROADCAST, Join, Met, Register, Terms};
use super::schedule::{Member, Schedule};
use crate::rendezvous::to_error;
use device::collective::{Merge, Operation, Reduction};
use device::{Error, LocalRendezvous, Pool};
use graph::{Code, DType, DeviceAttributes, DeviceName, Shape, TaskName, Tensor};
use network::{Asker, Call, Elements, Message, Network, Port};
use parking_lot::Mutex;
use proto::Status;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of seeds in a run of all tests; the environment variable `ANABRANCH_COLLECTIVE_SEEDS` sets another number,
/// `ANABRANCH_COLLECTIVE_SEED` the first seed.
const SEEDS: u64 = 300;

/// Time after which a group counts as hanging.
const PATIENCE: Duration = Duration::from_secs(30);

/// Largest number of elements in total over all members.
const MAX_TOTAL: usize = 2_000_000;

/// The id of the step in which a fault may happen.
const FIRST: i64 = 1;

/// Number of steps within which a group must work again after a member has died. The survivors may first join a group
/// with the member's earlier session, and a late request of that session may replace the group once more.
const MAX_STEPS: i64 = 6;

/// Time without messages after which collectives reach their deadlines once a member has died.
const DEADLINE: Duration = Duration::from_millis(200);

/// The fault of the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A member dies after a number of deliveries.
    Death {
        rank: usize,
        after: usize,
    },
    /// The input of a member has one element more than those of the others.
    OtherShape {
        rank: usize,
    },
}

/// A group with its operation and inputs.
struct Case {
    size: usize,
    operation: Operation,
    dtype: DType,
    /// Number of elements of a member's input.
    count: usize,
    root: usize,
    fault: Fault,
}

/// The outcomes of a step by rank; `None` for a member that has not ended.
type Outcomes = Vec<Option<device::Result<Tensor>>>;

/// A step in progress; its lists are indexed by rank.
struct Step {
    id: i64,
    ports: Vec<Arc<Port>>,
    met: Vec<Option<Met>>,
    courses: Vec<Option<Arc<Course>>>,
    outcomes: Arc<Mutex<Outcomes>>,
}

/// A group in progress.
struct Simulation {
    case: Case,
    random: StdRng,
    network: Arc<Network>,
    register: Register<Asker<Met>, Asker<Agreement>>,
    pool: Arc<Pool>,
    inputs: Vec<Tensor>,
    /// The incarnation of each member, which is also its session's number.
    incarnations: Vec<u64>,
    dead: Option<usize>,
    /// True if messages are delivered in order, and elements when all members have begun.
    is_ordered: bool,
}

impl Case {
    fn draw(random: &mut StdRng) -> Case {
        let size = random.random_range(2..=33);
        let root = random.random_range(0..size);
        let merge = [Merge::Add, Merge::Mul, Merge::Min, Merge::Max][random.random_range(0..4)];
        let reduction = Reduction { merge, is_mean: random.random() };
        let operation = match random.random_range(0..6) {
            0..2 => Operation::Reduce(reduction),
            2 => Operation::ReduceScatter(reduction),
            3 => Operation::Gather,
            4 => Operation::Broadcast { is_source: false },
            _ => Operation::AllToAll,
        };
        let dtype = [DType::Float, DType::Double, DType::Int32][random.random_range(0..3)];
        // Most inputs are small; one of twenty has up to a million elements.
        let most =
            [40, 20_000, 1_000_000][if random.random_bool(0.05) { 2 } else { random.random_range(0..2) }];
        let most = if random.random_bool(0.7) { most.min(40) } else { most };
        let count = random.random_range(0..=most).min(MAX_TOTAL / size / size);
        // These operations need rows of equal sizes.
        let count = if matches!(operation, Operation::ReduceScatter(_) | Operation::AllToAll) {
            count.div_ceil(size) * size
        } else {
            count
        };
        let rank = random.random_range(0..size);
        let fault = match random.random_range(0..10) {
            0..4 => Fault::Death { rank, after: random.random_range(0..4 * size * size) },
            4 => Fault::OtherShape { rank },
            _ => Fault::None,
        };
        Case { size, operation, dtype, count, root, fault }
    }

    fn operation_of(&self, rank: usize) -> Operation {
        match self.operation {
            Operation::Broadcast { .. } => Operation::Broadcast { is_source: rank == self.root },
            other => other,
        }
    }

    /// Returns the number of elements of a member's output.
    fn output_count(&self) -> usize {
        match self.operation {
            Operation::Gather => self.count * self.size,
            Operation::ReduceScatter(_) => self.count / self.size,
            _ => self.count,
        }
    }

    fn input(&self, random: &mut StdRng) -> Tensor {
        let shape = shape(self.count);
        let mut values = (0..self.count).map(|_| random.random_range(-9.0..9.0f64));
        let tensor = match self.dtype {
            DType::Float => Tensor::from_slice(&values.map(|v| v as f32).collect::<Vec<_>>(), shape),
            DType::Double => Tensor::from_slice(&values.by_ref().collect::<Vec<_>>(), shape),
            _ => Tensor::from_slice(&values.map(|v| v as i32).collect::<Vec<_>>(), shape),
        };
        tensor.unwrap_or_else(|e| panic!("{e}"))
    }

    /// Returns the bytes of a member's output, computed by one thread.
    fn expected(&self, inputs: &[Tensor], rank: usize) -> device::Result<Vec<u8>> {
        let all: Vec<&[u8]> = inputs.iter().map(Tensor::bytes).collect::<Result<_, _>>()?;
        let row = self.count / self.size * self.dtype.size().unwrap_or(0);
        let combined = |reduction| {
            let mut out = Tensor::unspecified(self.dtype, shape(self.count))?;
            kernels::collective::combine(self.dtype, reduction, self.size, &all, out.bytes_mut()?)?;
            Ok::<_, Error>(out.bytes()?.to_vec())
        };
        Ok(match self.operation {
            Operation::Reduce(reduction) => combined(reduction)?,
            Operation::ReduceScatter(reduction) => combined(reduction)?[rank * row..][..row].to_vec(),
            Operation::Gather => all.concat(),
            Operation::AllToAll => all.iter().flat_map(|bytes| bytes[rank * row..][..row].to_vec()).collect(),
            _ => all[self.root].to_vec(),
        })
    }
}

fn shape(count: usize) -> Shape {
    Shape::new(&[count]).unwrap_or_default()
}

impl Simulation {
    fn new(seed: u64, pool: &Arc<Pool>) -> Simulation {
        let mut random = StdRng::seed_from_u64(seed);
        let case = Case::draw(&mut random);
        Simulation::of(case, random, pool)
    }

    fn of(case: Case, mut random: StdRng, pool: &Arc<Pool>) -> Simulation {
        let inputs = (0..case.size).map(|_| case.input(&mut random)).collect();
        let (network, incarnations) = (Network::new(case.size), vec![1; case.size]);
        let (register, pool) = (Register::default(), pool.clone());
        Simulation {
            case,
            random,
            network,
            register,
            pool,
            inputs,
            incarnations,
            dead: None,
            is_ordered: false,
        }
    }

    fn device(&self, rank: usize) -> DeviceAttributes {
        DeviceAttributes {
            name: DeviceName::new(&TaskName::new("worker", rank as u32), "CPU", 0),
            memory_limit: 0,
            incarnation: self.incarnations[rank],
            physical_description: String::new(),
        }
    }

    fn join(&self, call: Call) -> Message {
        let Call { rank, step_id } = call;
        let session = format!("session {rank} of {}", self.incarnations[rank]).into();
        let (group_size, device) = (self.case.size, self.device(rank));
        Message::Join(call, Join { session, group_key: 1, group_size, device, rank: None, step_id })
    }

    fn agree(&self, call: Call) -> Message {
        let Call { rank, step_id } = call;
        let is_other = call.step_id == FIRST && self.case.fault == Fault::OtherShape { rank };
        let is_broadcast = matches!(self.case.operation, Operation::Broadcast { .. });
        let terms = Terms {
            kind: if is_broadcast { BROADCAST } else { 0 },
            dtype: self.case.dtype.number(),
            shape: Some(shape(self.case.count + usize::from(is_other))),
            functions: String::new(),
        };
        let device = self.device(rank).name.to_string();
        let agree = Agree {
            group_key: 1,
            is_communicator: false,
            instance_key: 7,
            device,
            node: format!("node_{rank}"),
            terms,
            is_source: is_broadcast && rank == self.case.root,
            step_id,
            renewal: None,
            bucket: None,
        };
        Message::Agree(call, Box::new(agree))
    }

    /// Posts a request to the leader, sometimes twice.
    fn request(&mut self, make: impl Fn(&Simulation) -> Message) {
        self.network.post(make(self));
        if self.random.random_bool(0.1) {
            self.network.post(make(self));
        }
    }

    fn begin(&mut self, id: i64) -> Step {
        let size = self.case.size;
        let devices: Arc<[String]> = (0..size).map(|rank| self.device(rank).name.to_string()).collect();
        let port = |rank| {
            let (network, devices, local) = (self.network.clone(), devices.clone(), LocalRendezvous::new());
            Arc::new(Port { step_id: id, rank, network, devices, local })
        };
        let ports = (0..size).map(port).collect();
        (0..size).for_each(|rank| self.request(|own| own.join(Call { rank, step_id: id })));
        let outcomes = Arc::new(Mutex::new(vec![None; size]));
        Step { id, ports, met: vec![None; size], courses: vec![None; size], outcomes }
    }

    /// Runs a step of all members until all living members have ended.
    fn run(&mut self, id: i64) -> Outcomes {
        let (began, mut delivered) = (Instant::now(), 0);
        let may_expire = self.has_restarted() && id < MAX_STEPS;
        let mut last = began;
        let mut step = self.begin(id);
        while (0..self.case.size).any(|rank| self.dead != Some(rank) && !step.has_ended(rank)) {
            if let Fault::Death { rank, after } = self.case.fault
                && (id, self.dead) == (FIRST, None)
                && delivered >= after
            {
                self.kill(rank);
            }
            let random = &mut self.random;
            let message = match self.is_ordered {
                true => self.network.take_in_order(),
                false => self.network.take(|count| random.random_range(0..count)),
            };
            match message {
                Some(message) => {
                    self.deliver(message, &mut step);
                    last = Instant::now();
                }
                None if may_expire && last.elapsed() > DEADLINE => self.expire(&step),
                // Threads of the pool combine large chunks, so the loop waits for them.
                None => std::thread::yield_now(),
            }
            delivered += 1;
            assert!(
                began.elapsed() < PATIENCE,
                "step {id} hangs: {:?}, {}",
                step.outcomes.lock(),
                self.register.who_has_joined((1, false))
            );
        }
        // The leader is told of failures before the masters begin another step; other messages may be late.
        let failed = self.network.take_all(|message| match message {
            Message::Failed { step_id, why } => Some((*step_id, why.clone())),
            _ => None,
        });
        failed.into_iter().for_each(|(step_id, why)| self.fail(step_id, &why));
        step.outcomes.lock().clone()
    }

    /// Kills a member: its last messages may be lost, and the other members are told that their links have broken.
    fn kill(&mut self, dead: usize) {
        self.dead = Some(dead);
        let random = &mut self.random;
        self.network.lose(|message| match message {
            Message::Elements(elements) => elements.from == dead && random.random(),
            Message::Join(call, _) | Message::Agree(call, _) => call.rank == dead && random.random(),
            _ => false,
        });
        for to in (0..self.case.size).filter(|to| *to != dead) {
            self.network.post(Message::Broken { to, step_id: FIRST, dead });
        }
    }

    fn deliver(&mut self, message: Message, step: &mut Step) {
        match message {
            Message::Join(call, join) => {
                let answers = self.register.join(join, Asker::new(call, &self.network, Message::Joined));
                answers.into_iter().for_each(|(asker, answer)| asker.answer(answer));
            }
            Message::Agree(call, agree) => {
                let answers = self.register.agree(*agree, Asker::new(call, &self.network, Message::Agreed));
                answers.into_iter().for_each(|(asker, answer)| asker.answer(answer));
            }
            Message::Failed { step_id, why } => self.fail(step_id, &why),
            Message::Joined(call, answer) if self.awaits(step, call) && step.met[call.rank].is_none() => {
                match answer {
                    Ok(met) => {
                        step.met[call.rank] = Some(met);
                        self.request(|own| own.agree(call));
                    }
                    Err(status) => self.end(step, call.rank, to_error(status)),
                }
            }
            Message::Agreed(call, answer) if self.awaits(step, call) && step.courses[call.rank].is_none() => {
                match answer {
                    Ok(agreed) => step.courses[call.rank] = self.start(step, call.rank, agreed.source),
                    Err(status) => self.end(step, call.rank, to_error(status)),
                }
            }
            // This is the second answer to a member that has called twice.
            Message::Joined(..) | Message::Agreed(..) => {}
            Message::Elements(Elements { step_id, to, key, sent, hops, .. }) => {
                if step_id == step.id && self.dead != Some(to) {
                    self.network.arrive(to, hops);
                    // An error means that the member has ended, so the elements are not needed.
                    let _ = step.ports[to].local.put(&key, sent);
                }
            }
            Message::Cancelled { to, step_id, why } => {
                if step_id == step.id && self.dead != Some(to) {
                    match why.is_derived() {
                        true => step.end(to, why),
                        false => self.end(step, to, why),
                    }
                }
            }
            // A broken link ends only the steps in progress.
            Message::Broken { step_id, .. } if step_id != step.id => {}
            Message::Broken { to, dead, .. } => {
                let text = format!("the connection to {} has broken", self.device(dead).name.task_name());
                self.end(step, to, Error::new(Code::Unavailable, text));
            }
        }
    }

    /// Returns whether a member has died and its task has restarted.
    fn has_restarted(&self) -> bool {
        self.incarnations.iter().any(|incarnation| *incarnation > 1)
    }

    /// Ends the collectives of a step at their deadlines.
    fn expire(&mut self, step: &Step) {
        let text = format!("{}: one of an earlier session", self.register.who_has_joined((1, false)));
        for rank in 0..self.case.size {
            self.end(step, rank, Error::new(Code::DeadlineExceeded, text.clone()));
        }
    }

    /// Returns the error of a member that receives from the earlier session of a restarted task.
    fn stale(&self, met: &Met, schedule: &Schedule) -> Option<Error> {
        let mut receives = schedule.phases.iter().flat_map(|phase| &phase.receives);
        let stale = receives
            .find(|transfer| met.members[transfer.peer].incarnation != self.incarnations[transfer.peer])?;
        let name = &met.members[stale.peer].name;
        Some(Error::new(Code::Aborted, format!("{name} has another incarnation in its next session")))
    }

    /// Returns whether a member waits for the answer to a call.
    fn awaits(&self, step: &Step, call: Call) -> bool {
        call.step_id == step.id && self.dead != Some(call.rank) && !step.has_ended(call.rank)
    }

    fn start(&self, step: &Step, rank: usize, source: Option<usize>) -> Option<Arc<Course>> {
        let (case, members) = (&self.case, step.met[rank].as_ref()?.members.clone());
        let (operation, width) = (case.operation_of(rank), case.dtype.size()?);
        let member = Member { rank, size: case.size, source, count: case.count, width };
        let plan = Plan {
            devices: names_of(&members),
            members,
            rank,
            operation,
            dtype: case.dtype,
            width,
            output: shape(case.output_count()),
            name: format!("{}", step.id),
            foreign: None,
            schedule: Schedule::new(operation, member),
        };
        // The receiver's request reaches the restarted task, which refuses it.
        let stale = self.stale(step.met[rank].as_ref()?, &plan.schedule);
        let outcomes = step.outcomes.clone();
        let finish = move |outcome| {
            outcomes.lock()[rank].get_or_insert(outcome);
        };
        let input =
            (operation != Operation::Broadcast { is_source: false }).then(|| self.inputs[rank].clone());
        let (port, pool) = (step.ports[rank].clone(), self.pool.clone());
        let course = Course::start(plan, input, port, pool, Box::new(finish), None);
        if let Some(why) = stale {
            self.network.post(Message::Cancelled { to: rank, step_id: step.id, why });
        }
        Some(course)
    }

    /// Ends a member's step with an error, unless it has ended. The other members and, through the member's master, the
    /// leader are told.
    fn end(&mut self, step: &Step, rank: usize, error: Error) {
        if self.dead == Some(rank) || step.has_ended(rank) {
            return;
        }
        step.end(rank, error.clone());
        self.network.post(Message::Failed { step_id: step.id, why: crate::failure(&error).derived() });
        for to in (0..self.case.size).filter(|to| *to != rank) {
            self.network.post(Message::Cancelled { to, step_id: step.id, why: error.clone().derived() });
        }
    }

    fn fail(&mut self, step_id: i64, why: &Status) {
        let (joining, agreeing) = self.register.fail_step(step_id, why);
        joining.into_iter().for_each(|asker| asker.answer(Err(why.clone())));
        agreeing.into_iter().for_each(|asker| asker.answer(Err(why.clone())));
    }

    /// Runs the group, and checks each outcome: either the elements that a serial computation gives, or an error that
    /// names the cause.
    fn check(&mut self) {
        let outcomes = self.run(FIRST);
        let cause = match self.case.fault {
            Fault::Death { rank, .. } => format!("/job:worker/replica:0/task:{rank} has broken"),
            Fault::OtherShape { .. } => "Shape mismatch in the collective instance 7 of group 1".into(),
            Fault::None => String::new(),
        };
        let has_failed = self.check_outcomes(&outcomes, &cause);
        assert_eq!(has_failed, has_failed && self.case.fault != Fault::None);
        let had_died = self.dead.take();
        if let Some(dead) = had_died {
            self.incarnations[dead] += 1;
        }
        for id in FIRST + 1..=MAX_STEPS {
            let outcomes = self.run(id);
            let is_retried = had_died.is_some() && id < MAX_STEPS;
            if !self.check_outcomes(&outcomes, if is_retried { "session" } else { "no cause" }) {
                return;
            }
            assert!(is_retried, "step {id} has failed: {outcomes:?}");
        }
    }

    /// Checks the outcomes of the living members: each must be the right elements or an error with `cause`. Returns
    /// whether a member has failed.
    fn check_outcomes(&self, outcomes: &Outcomes, cause: &str) -> bool {
        let mut has_failed = false;
        for (rank, outcome) in outcomes.iter().enumerate().filter(|(rank, _)| self.dead != Some(*rank)) {
            match outcome {
                Some(Ok(output)) => {
                    let expected = self.case.expected(&self.inputs, rank);
                    let is_right = expected.is_ok_and(|bytes| output.bytes() == Ok(&bytes));
                    assert!(is_right, "rank {rank} has other elements");
                }
                Some(Err(error)) => {
                    assert!(error.to_string().contains(cause), "rank {rank}: no {cause:?} in: {error}");
                    has_failed = true;
                }
                None => panic!("rank {rank} has not ended"),
            }
        }
        has_failed
    }
}

impl Step {
    fn end(&self, rank: usize, error: Error) {
        match &self.courses[rank] {
            Some(course) => course.fail(error),
            None => {
                self.outcomes.lock()[rank].get_or_insert(Err(error));
            }
        }
    }

    fn has_ended(&self, rank: usize) -> bool {
        self.outcomes.lock()[rank].is_some()
    }
}

#[test]
fn every_group_ends_with_the_right_elements_or_a_named_error() -> Result<(), Box<dyn std::error::Error>> {
    let number = |name: &str, default| std::env::var(name).map_or(Ok(default), |text| text.parse::<u64>());
    let first = number("ANABRANCH_COLLECTIVE_SEED", 0)?;
    let seeds = number("ANABRANCH_COLLECTIVE_SEEDS", SEEDS)?;
    let pool = Pool::new(2)?;
    for seed in first..first + seeds {
        let mut simulation = Simulation::new(seed, &pool);
        let Case { size, operation, dtype, count, fault, .. } = simulation.case;
        let case = format!("seed {seed}: {size} members, {operation:?} of {count} {dtype}, {fault:?}");
        let checked = catch_unwind(AssertUnwindSafe(|| simulation.check()));
        if let Err(payload) = checked {
            let text = payload.downcast_ref::<String>().map_or("a panic", String::as_str);
            return Err(format!("{case}: {text}").into());
        }
    }
    Ok(())
}

#[test]
fn a_small_reduction_of_many_members_takes_one_hop() -> Result<(), Box<dyn std::error::Error>> {
    const MEMBERS: usize = 64;
    let operation = Operation::Reduce(Reduction::SUM);
    let case = Case { size: MEMBERS, operation, dtype: DType::Float, count: 1, root: 0, fault: Fault::None };
    let mut simulation = Simulation::of(case, StdRng::seed_from_u64(0), &Pool::new(1)?);
    simulation.is_ordered = true;
    let outcomes = simulation.run(FIRST);
    assert!(!simulation.check_outcomes(&outcomes, "no cause"));
    // A binary tree would take 2 log2(64) = 12 hops.
    assert_eq!(simulation.network.hops(), 1);
    Ok(())
}
