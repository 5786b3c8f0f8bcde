//! One synchronous job of two replicas, one of this crate and one that uses TensorFlow's `SyncReplicasOptimizer`.
//! Either may be the chief.

use crate::support::cluster::Cluster;
use crate::support::{Fallible, python};
use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{DType, Graph, Output, Scope};
use anabranch::train::{
    Aggregation, Initializer, Master, MonitoredConfig, MonitoredSession, Optimizer, Role, Strategy, SyncMode,
    Training, Variables, hooks,
};
use std::process::Stdio;
use std::time::Duration;

const STEPS: i64 = 12;

struct Replica {
    graph: Graph,
    training: Training,
    w: Output,
}

/// Builds the model of `joint_replica.py`. Both replicas compute the same gradients, because a step may take two
/// gradients of one replica: a fast replica may take a slow replica's token.
fn replica(task: u32) -> Fallible<Replica> {
    let root = Scope::new();
    let sync = SyncMode::Sync { replicas_to_aggregate: 2, backup: 0, aggregation: Aggregation::Accumulators };
    let strategy =
        Strategy::ParameterServer { ps_tasks: 1, worker: task, placement: Default::default(), sync };
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let optimizer = Optimizer::gradient_descent(0.125);
    let training = strategy.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let w = variables.get("w", DType::Float, &[2], &Initializer::Constant(0.5));
        let target = scope.constant([-1.0f32, 3.0]);
        scope.sum(scope.square(scope.sub(w.value, target)), &[0], false)
    })?;
    let w = variables.find("w").ok_or("no variable")?.value;
    Ok(Replica { graph: root.finish()?, training, w })
}

/// Trains with one replica of each kind; returns the final weights and global step.
fn train(chief_is_ours: bool) -> Fallible<(Vec<f32>, i64)> {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let (ours, theirs) = if chief_is_ours { (0, 1) } else { (1, 0) };
    let mut script = python::script("tests/tensorflow/joint_replica.py")?;
    script.args(["--target", &cluster.target("worker", theirs), "--task", &theirs.to_string()]);
    script.args(["--steps", &STEPS.to_string()]);
    if !chief_is_ours {
        script.arg("--chief");
    }
    let peer = script.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let replica = replica(ours as u32)?;
    let config = MonitoredConfig {
        role: Role::fixed(chief_is_ours),
        foreign_chief: !chief_is_ours,
        ready_deadline: Duration::from_secs(120),
        step_deadline: Duration::from_secs(120),
        stop_grace: Duration::from_secs(30),
        ..MonitoredConfig::default()
    };
    let master = Master::Remote(cluster.target("worker", ours));
    let stop = Box::new(hooks::StopAtStep { last_step: STEPS });
    let (graph, training) = (replica.graph.clone(), replica.training.clone());
    let mut session = MonitoredSession::new(master, graph, training, None, vec![stop], config)?;
    while session.run(&[], &[], &[replica.training.train])?.is_some() {}
    session.finish()?;
    let output = peer.wait_with_output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let steps = out.trim().strip_prefix("ok ").and_then(|n| n.parse::<i64>().ok());
    assert!(output.status.success() && steps.is_some_and(|n| n > 0), "{out}\n{err}");
    let after = Session::connect(&cluster.target("worker", 0), replica.graph, SessionOptions::default())?;
    let values = after.run(&[], &[replica.w, replica.training.global_step], &[])?;
    Ok((values[0].values::<f32>()?.to_vec(), values[1].item()?))
}

/// Returns the weights after `steps` steps of gradient descent.
fn expected(steps: i64) -> [f32; 2] {
    let mut w = [0.5f32, 0.5];
    for _ in 0..steps {
        let next = |at: f32, target: f32| at - 0.125 * (2.0 * (at - target));
        w = [next(w[0], -1.0), next(w[1], 3.0)];
    }
    w
}

#[test]
fn our_chief_trains_with_a_tensorflow_worker() -> Fallible {
    let (w, step) = train(true)?;
    assert_eq!(step, STEPS);
    let near = w.iter().zip(expected(step)).all(|(w, e)| (w - e).abs() < 1e-5);
    assert!(near, "{w:?}, expected {:?}", expected(step));
    Ok(())
}

#[test]
fn our_worker_trains_with_a_tensorflow_chief() -> Fallible {
    let (w, step) = train(false)?;
    assert!(step >= STEPS, "{step}");
    let near = w.iter().zip(expected(step)).all(|(w, e)| (w - e).abs() < 1e-5);
    assert!(near, "{w:?}, expected {:?}", expected(step));
    Ok(())
}
