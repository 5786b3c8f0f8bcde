//! The training problem `clicks`, and a model with two parts (Cheng et al., "Wide & Deep Learning for Recommender
//! Systems", 2016): a wide part with a weight for each value and for each pair of place and hour, and a deep part with
//! embeddings of the values. The tables of weights and of embeddings are cut into shards on alternating parameter
//! servers, and a step reads and updates only the rows that its batch uses.

mod clicks;

use super::layers::dense;
use super::problem::Problem;
use clicks::{COLUMNS, HOUR, NUMBERS, PLACE};
use graph::{DType, Output, Scope};
use std::error::Error;
use train::{Initializer, LearningRate, Optimizer, PartitionStrategy, Partitioner, Variables};

/// Number of shards of each table.
const PARTS: usize = 2;

/// Size of the embedding vector of an id.
const EMBEDDING: usize = 8;

/// Number of units of each hidden layer.
const HIDDEN: [usize; 2] = [32, 16];

const TRAINING: usize = 20_000;
const HELD_OUT: usize = 8_000;

pub(super) fn problem() -> Result<Problem, Box<dyn Error + Send + Sync>> {
    let (training, held_out) = clicks::clicks(TRAINING, HELD_OUT)?;
    Ok(Problem { name: "clicks", training, held_out, scores, optimizer, rate: 0.3, steps: 500, batch: 128 })
}

/// Returns an optimizer whose learning rate for each element decays with the squares of the element's gradients, so
/// that the rows of rare ids learn as fast as those of frequent ids.
fn optimizer(learning_rate: LearningRate) -> Optimizer {
    // The initial value of the accumulators is small, because gradients are means over a batch in which each row occurs
    // rarely.
    Optimizer::Adagrad { learning_rate, initial_accumulator_value: 1e-5 }
}

/// Returns scores `[n, 2]` of the classes "no click" and "click", for ids `[n, 4]` and numeric values `[n, 2]`.
fn scores(scope: &Scope, variables: &Variables, features: &[Output]) -> Output {
    let ids = scope.unpack(features[0], COLUMNS.len(), 1);
    let wide = wide(scope, variables, &ids);
    let deep = deep(scope, variables, &ids, features[1]);
    scores_of_log_odds(scope, scope.add(wide, deep))
}

/// Returns the scores `[n, 2]` of two classes whose difference is the log odds `odds`, `[n, 1]`.
fn scores_of_log_odds(scope: &Scope, odds: Output) -> Output {
    scope.concat(&[scope.zeros_like(odds), odds], 1)
}

/// Returns the log odds of the wide part, `[n, 1]`: the sum of the weights of each column's id and of the pair of place
/// and hour.
fn wide(scope: &Scope, variables: &Variables, ids: &[Output]) -> Output {
    let hours = COLUMNS[HOUR].ids;
    let place_and_hour = scope.add(scope.mul(ids[PLACE], scope.constant(hours as i32)), ids[HOUR]);
    let crossed = ("place_x_hour", COLUMNS[PLACE].ids * hours, place_and_hour);
    let single = COLUMNS.iter().zip(ids).map(|(column, &ids)| (column.name, column.ids, ids));
    let weights: Vec<Output> = single
        .chain([crossed])
        .map(|(name, rows, ids)| {
            embedding_rows(scope, variables, &format!("wide/{name}"), [rows, 1], &Initializer::Zeros, ids)
        })
        .collect();
    scope.op("AddN").input(weights).output()
}

/// Returns the log odds of the deep part, `[n, 1]`: dense layers over the embeddings of the ids and the numeric values.
fn deep(scope: &Scope, variables: &Variables, ids: &[Output], numbers: Output) -> Output {
    let embedded = (1..).zip(COLUMNS).zip(ids).map(|((seed, column), &ids)| {
        let first = Initializer::TruncatedNormal { stddev: 0.2, seed: seed * PARTS as i64 };
        embedding_rows(
            scope,
            variables,
            &format!("deep/{}", column.name),
            [column.ids, EMBEDDING],
            &first,
            ids,
        )
    });
    let mut layer = scope.concat(&embedded.chain([numbers]).collect::<Vec<_>>(), 1);
    let mut units = COLUMNS.len() * EMBEDDING + NUMBERS;
    for (i, hidden) in HIDDEN.into_iter().enumerate() {
        layer = scope.relu(dense(scope, variables, &format!("deep/hidden_{i}"), layer, units, hidden));
        units = hidden;
    }
    dense(scope, variables, "deep/odds", layer, units, 1)
}

/// Returns the rows at `ids` of a sharded table.
fn embedding_rows(
    scope: &Scope,
    variables: &Variables,
    name: &str,
    shape: [usize; 2],
    first: &Initializer,
    ids: Output,
) -> Output {
    let cut = Partitioner::fixed_size(PARTS);
    let table = variables.get_partitioned(name, DType::Float, &shape, first, cut);
    variables.embedding_lookup(scope, &table.parts, ids, PartitionStrategy::Mod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::demo::mode::{Compute, Mode, Place};
    use crate::command::demo::problem::Scores;
    use crate::command::demo::replica::Replica;
    use crate::command::demo::training::{self, Plan};

    type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

    /// Trains a model with the model function `scores`, and returns its accuracy in percent on the held-out examples.
    fn accuracy(scores: Scores) -> Fallible<f64> {
        let problem = Problem { scores, ..problem()? };
        let (mode, compute) = (Mode::Local, Compute::Anywhere);
        let plan = Plan { mode, compute, steps: problem.steps, batch: problem.batch };
        Ok(training::run(&problem, plan)?.percent())
    }

    #[test]
    fn each_part_alone_is_less_accurate() -> Fallible {
        let wide = accuracy(|scope, variables, features| {
            let ids = scope.unpack(features[0], COLUMNS.len(), 1);
            scores_of_log_odds(scope, wide(scope, variables, &ids))
        })?;
        let deep = accuracy(|scope, variables, features| {
            let ids = scope.unpack(features[0], COLUMNS.len(), 1);
            scores_of_log_odds(scope, deep(scope, variables, &ids, features[1]))
        })?;
        let both = accuracy(scores)?;
        let clicked = problem()?.held_out.labels.values::<i32>()?.iter().filter(|&&c| c == 1).count();
        let base = 100.0 * clicked.max(HELD_OUT - clicked) as f64 / HELD_OUT as f64;
        let said = format!("base {base}, wide {wide}, deep {deep}, both {both}");
        assert!(wide > base + 5.0 && deep > base + 5.0, "{said}");
        assert!(both > wide.max(deep) + 3.0, "{said}");
        Ok(())
    }

    /// Without towers, a step must neither read nor update a whole table.
    #[test]
    fn steps_use_only_rows_of_tables() -> Fallible {
        let problem = problem()?;
        for mode in [Mode::BetweenGraph, Mode::Synchronous, Mode::Accumulators, Mode::AllReduce, Mode::Hybrid]
        {
            let (place, compute) = (Place { worker: 1, workers: mode.clients() }, Compute::Anywhere);
            let replica = Replica::build(&problem, mode, compute, place, problem.steps, problem.batch)?;
            let step = graph::passes::prune(&replica.graph, &[replica.training.train])?;
            let tables: Vec<_> =
                replica.training.variables.trainable().into_iter().filter(|v| v.slice.is_some()).collect();
            assert_eq!(tables.len(), PARTS * (2 * COLUMNS.len() + 1));
            for (i, table) in tables.into_iter().enumerate() {
                let handle = step.find(&table.name).ok_or("a table is not in the step")?;
                let server = &step.node(handle).device;
                let job = if mode == Mode::AllReduce { "/job:worker/" } else { "/job:ps/" };
                assert!(server.starts_with(job), "{} is on {server}", table.name);
                let mut users = Vec::new();
                for user in step.consumers(handle) {
                    let node = step.node(user.node);
                    assert_eq!(&node.device, server, "{} is not beside {}", node.name, table.name);
                    users.push(node.op.name());
                }
                users.sort_unstable();
                // In hybrid mode each table is updated by one worker, below a Switch. In synchronous modes only the chief's update writes the tables, not the worker's step.
                let wanted: &[&str] = match mode {
                    Mode::BetweenGraph | Mode::AllReduce => &["ResourceGather", "ResourceSparseApplyAdagrad"],
                    Mode::Hybrid if i % 2 == 1 => &["ResourceGather", "Switch"],
                    _ => &["ResourceGather"],
                };
                assert_eq!(users, wanted, "{mode:?} {}", table.name);
            }
        }
        Ok(())
    }
}
