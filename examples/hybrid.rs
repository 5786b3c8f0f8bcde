//! Training with tables on parameter servers: each worker holds the dense variables, and all workers combine their
//! gradients in each step. Run it with `cargo run --example hybrid`.
#![allow(clippy::print_stdout)]

mod support;

use anabranch::graph::{DType, Output, Scope};
use anabranch::train::{
    Average, Initializer, PartitionStrategy, Partitioner, Strategy, Tables, Uneven, VariablePlacement,
    Variables, Wire,
};

/// Returns the mean squared error of a line whose bias is looked up in a table, which has one row for each half of the
/// points.
fn line_of_table(scope: &Scope, variables: &Variables, batch: &[Output]) -> Output {
    let w = variables.get("w", DType::Float, &[], &Initializer::Zeros);
    let cut = Partitioner::fixed_size(2);
    let table = variables.get_partitioned("b", DType::Float, &[2], &Initializer::Zeros, cut);
    let half = scope.cast(scope.mul(batch[0], scope.constant(2.0f32)), DType::Int32);
    let b = variables.embedding_lookup(scope, &table.parts, half, PartitionStrategy::Mod);
    let error = scope.sub(scope.add(scope.mul(batch[0], w.value), b), batch[1]);
    scope.mean(scope.square(error), &[0], false)
}

fn main() -> support::Fallible {
    let cluster = support::InProcessCluster::start(&[("ps", 2), ("worker", 2)])?;
    let strategy = |worker| Strategy::AllReduce {
        worker,
        workers: 2,
        least: 2,
        average: Average::Mean,
        wire: Wire::F32,
        uneven: Uneven::Fail,
        tables: Tables::OnParameterServers { ps_tasks: 2, placement: VariablePlacement::RoundRobin },
    };
    let found = support::train_model_on(line_of_table, &cluster, strategy, 1000)?;
    println!("w, b = {found:.3?}");
    cluster.stop()
}
