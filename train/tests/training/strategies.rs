//! Tests of one model function with each strategy.

use super::{Fallible, session};
use anabranch_train::{
    Averaging, Initializer, Optimizer, Strategy, SyncMode, Training, Variable, VariableCost,
    VariablePlacement, Variables,
};
use graph::{DType, Output, PartialShape, Scope, Shape, Tensor};
use proto::pb;
use std::collections::BTreeSet;

const ROWS: usize = 8;
const COLUMNS: usize = 4;

fn towers(count: usize) -> Strategy {
    let devices = (1..=count).map(|i| format!("/device:CPU:{i}")).collect();
    Strategy::Towers { devices, variables: "/device:CPU:0".to_owned(), averaging: Averaging::default() }
}

/// Adds the mean square error of a linear layer.
fn model(scope: &Scope, variables: &Variables, batch: &[Output]) -> Output {
    let w = variables.get("w", DType::Float, &[COLUMNS, 1], &Initializer::Constant(0.5));
    let b = variables.get("b", DType::Float, &[1], &Initializer::Zeros);
    let error = scope.sub(scope.bias_add(scope.matmul(batch[0], w.value), b.value), batch[1]);
    scope.mean(scope.square(error), &[0, 1], false)
}

struct BuiltModel {
    scope: Scope,
    variables: Variables,
    x: Output,
    y: Output,
    training: Training,
}

fn build(strategy: &Strategy, optimizer: &Optimizer) -> Fallible<BuiltModel> {
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let x = scope.placeholder("x", DType::Float, PartialShape::from([None, Some(COLUMNS)]));
    let y = scope.placeholder("y", DType::Float, PartialShape::from([None, Some(1)]));
    let training = strategy.minimize(&scope, &variables, optimizer, &[x, y], model)?;
    Ok(BuiltModel { scope: root, variables, x, y, training })
}

/// Returns a batch of small integers, so that a step's sums are exact in any order.
fn batch() -> Fallible<[Tensor; 2]> {
    let xs: Vec<f32> = (0..ROWS * COLUMNS).map(|i| ((i * 7) % 5) as f32 - 2.0).collect();
    let ys: Vec<f32> = (0..ROWS).map(|i| (i % 3) as f32).collect();
    let x = Tensor::from_slice(&xs, Shape::new(&[ROWS, COLUMNS])?)?;
    Ok([x, Tensor::from_slice(&ys, Shape::new(&[ROWS, 1])?)?])
}

/// Trains for `steps` steps. Returns the values of both variables, then the last loss.
fn train(strategy: &Strategy, cpu_devices: u32, steps: usize) -> Fallible<Vec<f32>> {
    let built = build(strategy, &Optimizer::gradient_descent(1.0 / 64.0))?;
    let session = session(built.scope.finish()?, cpu_devices)?;
    session.run(&[], &[], &[built.training.initialize])?;
    let step = session.callable(&[built.x, built.y], &[built.training.loss], &[built.training.train])?;
    let batch = batch()?;
    let mut loss = f32::NAN;
    for _ in 0..steps {
        loss = step.call(&batch)?[0].item()?;
    }
    let values: Vec<Output> =
        ["w", "b"].iter().filter_map(|n| built.variables.find(n)).map(|v| v.value).collect();
    let mut trained = Vec::new();
    for value in session.run(&[], &values, &[])? {
        trained.extend_from_slice(value.values::<f32>()?);
    }
    trained.push(loss);
    Ok(trained)
}

#[test]
fn the_mean_over_towers_equals_the_gradient_of_the_whole_batch() -> Fallible {
    let whole = train(&Strategy::Local, 1, 1)?;
    assert_eq!(whole.len(), COLUMNS + 2);
    assert!(whole[..COLUMNS].iter().all(|&w| w != 0.5), "{whole:?}");
    assert_eq!(train(&towers(2), 3, 1)?, whole);
    assert_eq!(train(&towers(4), 5, 1)?, whole);
    Ok(())
}

#[test]
fn towers_train_the_same_model() -> Fallible {
    let whole = train(&Strategy::Local, 1, 50)?;
    let towers = train(&towers(2), 3, 50)?;
    assert!(whole.iter().zip(&towers).all(|(a, b)| (a - b).abs() <= 1e-6), "{whole:?}\n{towers:?}");
    Ok(())
}

#[test]
fn each_tower_runs_on_its_device() -> Fallible {
    let built = build(&towers(2), &Optimizer::adam(0.01))?;
    let session = session(built.scope.finish()?, 3)?;
    session.run(&[], &[], &[built.training.initialize])?;
    let options = pb::RunOptions {
        trace_level: pb::run_options::TraceLevel::FullTrace as i32,
        output_partition_graphs: true,
        ..Default::default()
    };
    let [x, y] = batch()?;
    let step = session.step().feed(built.x, x).feed(built.y, y).target(built.training.train);
    let metadata = step.options(options).run()?.metadata.ok_or("no metadata")?;

    let device = |i: usize| format!("/job:localhost/replica:0/task:0/device:CPU:{i}");
    let of_device = |i: usize| -> BTreeSet<&str> {
        let nodes = metadata.partition_graphs.iter().flat_map(|g| &g.node);
        nodes.filter(|n| n.device == device(i)).map(|n| &*n.name).collect()
    };
    let ran_on = |i: usize| -> BTreeSet<&str> {
        let stats = metadata.step_stats.iter().flat_map(|s| &s.dev_stats);
        stats.filter(|d| d.device == device(i)).flat_map(|d| &d.node_stats).map(|n| &*n.node_name).collect()
    };
    for tower in 0..2 {
        let own = format!("tower_{tower}/");
        let other = format!("tower_{}/", 1 - tower);
        let (placed, ran) = (of_device(tower + 1), ran_on(tower + 1));
        // At least the forward product and one backward product run on the tower's device.
        let products = |names: &BTreeSet<&str>| {
            names.iter().filter(|n| n.starts_with(&own) && n.contains("MatMul")).count()
        };
        assert!(products(&placed) >= 2, "CPU:{} holds {placed:?}", tower + 1);
        assert!(products(&ran) >= 2, "CPU:{} ran {ran:?}", tower + 1);
        assert!(!placed.iter().any(|n| n.starts_with(&other) && !n.contains("/_")), "{placed:?}");
    }
    let updates = ran_on(0).iter().filter(|n| n.contains("ResourceApplyAdam")).count();
    assert_eq!(updates, 2, "{:?}", ran_on(0));
    Ok(())
}

/// Returns a strategy with towers on `devices`, whose gradients NCCL averages.
fn by_nccl(devices: &[&str]) -> Strategy {
    let devices = devices.iter().map(|&device| device.to_owned()).collect();
    Strategy::Towers { devices, variables: "/device:CPU:0".to_owned(), averaging: Averaging::Nccl }
}

#[test]
fn nccl_sums_the_gradient_of_each_variable_over_all_towers() -> Fallible {
    let built = build(&by_nccl(&["/device:GPU:0", "/device:GPU:1"]), &Optimizer::gradient_descent(0.1))?;
    let graph = built.scope.finish()?;
    let step = graph::passes::prune(&graph, &[built.training.train])?;
    let mut sums = BTreeSet::new();
    for (_, node) in step.nodes().filter(|(_, node)| node.op.name() == "NcclAllReduce") {
        assert_eq!(
            (node.attr::<String>("reduction")?, node.attr::<i64>("num_devices")?),
            ("sum".to_owned(), 2)
        );
        sums.insert((node.attr::<String>("shared_name")?, node.device.to_string()));
    }
    let devices: Vec<&str> = sums.iter().map(|(_, device)| &**device).collect();
    assert_eq!(devices, ["/device:GPU:0", "/device:GPU:1", "/device:GPU:0", "/device:GPU:1"]);
    let names: BTreeSet<&str> = sums.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    Ok(())
}

#[test]
fn devices_that_nccl_cannot_average_between_are_refused() {
    let optimizer = Optimizer::gradient_descent(0.1);
    for (devices, reason) in [
        (&["/device:GPU:0", "/device:CPU:0"][..], "'/device:CPU:0' names none"),
        (&["/device:GPU:0", "/task:1"], "'/task:1' names none"),
        (
            &["/task:0/device:GPU:0", "/task:1/device:GPU:0"],
            "GPUs of one task, not '/task:0/device:GPU:0' and '/task:1",
        ),
        (&["/device:GPU:0", "/gpu:0"], "'/gpu:0' is listed twice"),
    ] {
        let error = build(&by_nccl(devices), &optimizer).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(reason), "{devices:?}: {error}");
    }
}

/// Returns the device of each variable, by name.
fn devices_of(built: &BuiltModel) -> Fallible<Vec<(String, String)>> {
    let graph = built.scope.finish()?;
    let device = |v: &Variable| (v.name.clone(), graph.node(v.handle.node).device.to_string());
    Ok(built.variables.all().iter().map(device).collect())
}

#[test]
fn round_robin_alternates_the_parameter_servers() -> Fallible {
    let strategy = Strategy::ParameterServer {
        ps_tasks: 3,
        worker: 1,
        placement: VariablePlacement::RoundRobin,
        sync: SyncMode::Async,
    };
    let built = build(&strategy, &Optimizer::momentum(0.1, 0.9))?;
    let expected = [
        ("w", "/job:ps/task:0/device:CPU:0"),
        ("b", "/job:ps/task:1/device:CPU:0"),
        ("w/Momentum", "/job:ps/task:0/device:CPU:0"),
        ("b/Momentum", "/job:ps/task:1/device:CPU:0"),
        ("global_step", "/job:ps/task:2/device:CPU:0"),
    ];
    assert_eq!(devices_of(&built)?, expected.map(|(v, d)| (v.to_owned(), d.to_owned())));
    let graph = built.scope.finish()?;
    for (_, node) in graph.nodes() {
        let on_ps = node.device.starts_with("/job:ps/");
        assert!(on_ps || &*node.device == "/job:worker/task:1", "{} is on '{}'", node.name, node.device);
        if node.op.name() == "ResourceApplyMomentum" {
            assert!(on_ps, "{} is not beside its variable", node.name);
        }
        if node.op.name() == "MatMul" {
            assert!(!on_ps, "{} is on '{}'", node.name, node.device);
        }
    }
    Ok(())
}

/// Returns for each variable in `sizes` the index of its parameter server, '0' or '1', under `placement`.
fn tasks_of(placement: &VariablePlacement, sizes: &[(&str, usize)]) -> Fallible<Vec<char>> {
    let root = Scope::new();
    let strategy = Strategy::ParameterServer {
        ps_tasks: 2,
        worker: 0,
        placement: placement.clone(),
        sync: SyncMode::Async,
    };
    let variables = Variables::new(&strategy.scopes(&root).1);
    for (name, size) in sizes {
        variables.get(name, DType::Float, &[*size], &Initializer::Zeros);
    }
    let graph = root.finish()?;
    let task = |v: &Variable| {
        let device = &graph.node(v.handle.node).device;
        device.strip_prefix("/job:ps/task:")?.strip_suffix("/device:CPU:0")?.chars().next()
    };
    Ok(variables.all().iter().filter_map(task).collect())
}

const SIZES: [(&str, usize); 5] =
    [("large", 100), ("small", 10), ("smaller", 5), ("middle", 40), ("last", 60)];

#[test]
fn greedy_by_bytes_chooses_the_server_with_the_fewest_bytes() -> Fallible {
    // The loads, in elements of 4 bytes, are 100 on the first server; 10, then 10 + 5, 15 + 40, 55 + 60 on the second
    // server.
    assert_eq!(tasks_of(&VariablePlacement::GreedyByBytes, &SIZES)?, ['0', '1', '1', '1', '1']);
    Ok(())
}

#[test]
fn greedy_by_cost_chooses_the_server_with_the_least_cost() -> Fallible {
    // Variables whose names start with "small" cost more than larger ones.
    let cost = VariableCost::new(|node| if node.name.starts_with("small") { 3.0 } else { 2.0 });
    let placement = VariablePlacement::GreedyByCost(cost);
    // The costs on the servers are 2 and 3, then 2 + 3, 3 + 2, 5 + 2; among equal costs, the first server is chosen.
    assert_eq!(tasks_of(&placement, &SIZES)?, ['0', '1', '0', '1', '0']);
    // The costs on the servers start at 0 for each graph.
    assert_eq!(tasks_of(&placement, &SIZES[..2])?, ['0', '1']);
    assert_eq!(placement, placement.clone());
    assert_ne!(placement, VariablePlacement::GreedyByCost(VariableCost::new(|_| 1.0)));
    Ok(())
}

#[test]
fn a_variable_without_gradient_is_named() -> Fallible {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let optimizer = Optimizer::gradient_descent(0.1);
    let refused = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let used = variables.get("used", DType::Float, &[], &Initializer::Zeros);
        variables.get("unused", DType::Float, &[], &Initializer::Zeros);
        scope.square(used.value)
    });
    let error = refused.err().ok_or("the strategy was accepted")?.to_string();
    assert!(error.contains("'unused'"), "{error}");
    Ok(())
}

#[test]
fn towers_need_devices() -> Fallible {
    let error =
        build(&towers(0), &Optimizer::gradient_descent(0.1)).err().ok_or("the strategy was accepted")?;
    assert!(error.to_string().contains("no devices"), "{error}");
    Ok(())
}
