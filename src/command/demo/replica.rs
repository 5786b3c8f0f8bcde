//! A client of a training job: the graph of its replica, trained to the last step.

use super::mode::{Compute, Mode, Place};
use super::problem::Problem;
use super::report::{Outcome, Progress};
use client::Session;
use graph::{DType, Graph, Output, Scope, Tensor};
use proto::pb;
use std::collections::BTreeMap;
use std::error::Error;
use train::{
    Dataset, Hook, Input, LearningRate, Master, MonitoredConfig, MonitoredSession, Role, Training, Variables,
    hooks,
};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Seed of the shuffle of the training examples.
const SEED: i64 = 1998;

/// Inverse of the fraction of steps in which the learning rate is warmed up.
const WARMUP: u64 = 4;

/// Number of batches that are prefetched.
const AHEAD: i64 = 4;

#[derive(Debug)]
pub(super) struct Replica {
    pub(super) graph: Graph,
    pub(super) training: Training,
    input: Input,
    /// The predicted class of each held-out example, `int32 [n]`.
    guesses: Output,
    compute: Compute,
    worker: u32,
    steps: u64,
}

impl Replica {
    /// Builds a replica. `batch` is the number of examples in a step: of all workers together if they are synchronous,
    /// otherwise of one worker.
    pub(super) fn build(
        problem: &Problem,
        mode: Mode,
        compute: Compute,
        place: Place,
        steps: u64,
        batch: usize,
    ) -> graph::Result<Replica> {
        let strategy = mode.strategy(place);
        let root = Scope::new();
        let (scope, for_variables) = strategy.scopes(&root);
        let variables = Variables::new(&for_variables);
        let input = examples(&scope, problem, mode, place, batch);
        let rate = LearningRate::CosineDecay { initial: problem.rate, decay_steps: steps, alpha: 0.0 };
        let optimizer = (problem.optimizer)(rate.warmed_up(steps / WARMUP));
        let scores = problem.scores;
        let loss = |scope: &Scope, variables: &Variables, batch: &[Output]| {
            let (labels, features) = (batch[batch.len() - 1], &batch[..batch.len() - 1]);
            let scope = compute.scope(scope);
            let losses = scope.sparse_softmax_cross_entropy(scores(&scope, variables, features), labels);
            scope.mean(losses, &[0], false)
        };
        let training = strategy.minimize(&scope, &variables, &optimizer, &input.next, loss)?;
        let apart = compute.scope(&scope).name_scope("held_out");
        let held_out: Vec<Output> =
            problem.held_out.features.iter().map(|f| apart.constant(f.clone())).collect();
        let axis = apart.constant(1i32);
        let guesses = apart
            .op("ArgMax")
            .input(scores(&apart, &variables, &held_out))
            .input(axis)
            .attr("output_type", DType::Int32)
            .output();
        Ok(Replica { graph: root.finish()?, training, input, guesses, compute, worker: place.worker, steps })
    }

    /// Trains together with the other replicas until the last step, and returns the final evaluation.
    pub(super) fn train(self, problem: &Problem, master: Master, progress: &Progress) -> Fallible<Outcome> {
        let last_step = i64::try_from(self.steps)?;
        let all: Vec<Box<dyn Hook>> = vec![
            self.input.hook(),
            Box::new(progress.hook(self.training.loss)),
            Box::new(hooks::StopAtStep { last_step }),
        ];
        let (role, session) = (Role::fixed(self.worker == 0), self.compute.session());
        let config = MonitoredConfig { role, session, ..MonitoredConfig::default() };
        let (graph, training) = (self.graph.clone(), self.training.clone());
        let mut session = MonitoredSession::new(master, graph, training, None, all, config)?;
        while session.run(&[], &[], &[self.training.train])?.is_some() {}
        let outcome = self.evaluate(problem, session.session())?;
        session.finish()?;
        Ok(outcome)
    }

    /// Counts the held-out examples that are classified correctly, and returns the count, the devices that computed it,
    /// and the device of each variable.
    fn evaluate(&self, problem: &Problem, session: &Session) -> Fallible<Outcome> {
        let options = pb::RunOptions { output_partition_graphs: true, ..Default::default() };
        // The probe of each variable is a target, so that the partition graphs that the step returns contain all
        // variables.
        let step = session.step().fetch(self.guesses).fetch(self.training.global_step);
        let step = self.training.probes.iter().fold(step, |step, (_, probe)| step.target(*probe));
        let outcome = step.options(options).run()?;
        let guesses = outcome.values[0].values::<i32>()?;
        let correct = guesses.iter().zip(problem.held_out.labels.values::<i32>()?).filter(|(g, l)| g == l);
        let placed = outcome.metadata.map(|m| m.partition_graphs).unwrap_or_default();
        let device_of = |name: &str| {
            let found = placed.iter().flat_map(|g| &g.node).find(|n| n.name == name);
            found.map_or_else(|| "unknown".to_owned(), |n| n.device.clone())
        };
        let variables = self.training.variables.all();
        let mut nodes = BTreeMap::<String, usize>::new();
        for node in placed.iter().flat_map(|graph| &graph.node) {
            *nodes.entry(node.device.clone()).or_default() += 1;
        }
        Ok(Outcome {
            nodes: nodes.into_iter().collect(),
            correct: correct.count(),
            evaluated: guesses.len(),
            examples: problem.name,
            steps: outcome.values[1].item::<i64>()?,
            variables: variables
                .iter()
                .map(|v| (v.name.clone(), device_of(&self.graph.node(v.handle.node).name)))
                .collect(),
        })
    }
}

/// Returns the input of a client. Every mode shuffles the examples in the same order and deals the batches to the
/// clients in rotation: the batches of synchronous clients in a step together equal the batch of a single client.
fn examples(scope: &Scope, problem: &Problem, mode: Mode, place: Place, batch: usize) -> Input {
    let Place { worker, workers } = place;
    let all: Vec<Tensor> = problem.training.tensors();
    let shuffled = Dataset::from_tensors(scope, &all).shuffle(problem.training.len() as i64, SEED);
    let batches = shuffled.repeat(None).batch(mode.share(batch, workers) as i64, true);
    batches.shard(workers, worker).prefetch(AHEAD).input("examples")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::demo::digits;
    use clap::ValueEnum;

    /// The test checks the requested devices, because the placer cannot assign a GPU on a machine without one.
    #[test]
    fn the_model_requests_a_gpu_and_its_variables_do_not() -> Fallible<()> {
        let problem = digits::problem()?;
        for mode in Mode::value_variants() {
            let replica =
                Replica::build(&problem, *mode, Compute::OnGpu, Place { worker: 1, workers: 2 }, 10, 64)?;
            let step = graph::passes::prune(&replica.graph, &[replica.training.train, replica.guesses.node])?;
            let asks = |op: &str| -> Vec<bool> {
                let nodes = step.nodes().filter(|(_, node)| node.op.name() == op);
                nodes.map(|(_, node)| node.device.contains("GPU:0")).collect()
            };
            // Each loss has two dense layers, and the held-out examples have two more.
            let softmaxes = asks("SparseSoftmaxCrossEntropyWithLogits");
            assert!(!softmaxes.is_empty() && softmaxes.iter().all(|&asks| asks), "{mode:?}");
            let products = asks("BiasAdd");
            assert_eq!(products, vec![true; 2 * softmaxes.len() + 2], "{mode:?}");
            assert!(asks("VarHandleOp").iter().all(|&asks| !asks), "{mode:?}");
        }
        Ok(())
    }
}
