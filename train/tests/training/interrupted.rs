//! Staged synchronous updates: the results have the same bits as those of updates in place, and an interrupted update
//! loses nothing.

use super::Fallible;
use anabranch_train::{
    Aggregation, Initializer, Master, MonitoredConfig, MonitoredSession, MovingAverage, Optimizer, Strategy,
    SyncMode, Training, UpdateOptions, Variables,
};
use client::{Server, ServerConfig, Session};
use graph::{DType, DeviceSpec, Graph, Node, NodeId, Output, PartialShape, Scope, Tensor};
use std::ops::Range;
use std::sync::Arc;

const STEPS: i64 = 4;

struct Model {
    graph: Graph,
    training: Training,
    ids: Output,
}

/// Places the variables of the table on the second of two CPU devices, and all other variables on the first.
fn on_two_devices(node: &Node) -> DeviceSpec {
    if node.op.name() != "VarHandleOp" {
        return DeviceSpec::default();
    }
    let id = Some(u32::from(node.name.starts_with("table")));
    DeviceSpec { device_type: Some("CPU".into()), id, ..DeviceSpec::default() }
}

/// Builds a model that multiplies looked-up rows of a table, some of them repeated, by a vector.
fn model(
    strategy: &Strategy,
    optimizer: &Optimizer,
    options: UpdateOptions,
    devices: u32,
) -> Fallible<Model> {
    let root = Scope::new();
    let root = if devices == 1 { root } else { root.device_fn(on_two_devices) };
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let ids = scope.placeholder("ids", DType::Int32, PartialShape::from([None]));
    let training = strategy.minimize_with(
        &scope,
        &variables,
        optimizer,
        options,
        &[ids],
        |scope, variables, batch| {
            let w = variables.get("w", DType::Float, &[3], &Initializer::Constant(0.3));
            let table = variables.get("table", DType::Float, &[6, 3], &Initializer::Constant(0.7));
            let rows = variables.embedding_lookup(scope, &[table], batch[0], Default::default());
            let error = scope.sub(scope.mul(rows, w.value), scope.constant(1.1f32));
            scope.mean(scope.square(error), &[0, 1], false)
        },
    )?;
    Ok(Model { graph: root.finish()?, training, ids })
}

fn single_worker(aggregation: Aggregation) -> Strategy {
    let sync = SyncMode::Sync { replicas_to_aggregate: 1, backup: 0, aggregation };
    Strategy::ParameterServer { ps_tasks: 0, worker: 0, placement: Default::default(), sync }
}

fn ids(step: i64) -> Fallible<Tensor> {
    let step = step as i32;
    Ok(Tensor::vector(&[step % 6, 4, step % 6, (step + 3) % 6])?)
}

fn server() -> Fallible<Arc<Server>> {
    Ok(Arc::new(Server::new(ServerConfig { threads: 2, cpu_devices: 2, ..ServerConfig::default() })?))
}

/// Trains up to step `last`, in a new session.
fn train(server: &Arc<Server>, model: &Model, last: i64) -> Fallible {
    let (graph, training) = (model.graph.clone(), model.training.clone());
    let master = Master::InProcess(server.clone());
    let config = MonitoredConfig::default();
    let mut session = MonitoredSession::new(master, graph, training, None, Vec::new(), config)?;
    while global_step(server, model)? < last {
        let ids = ids(global_step(server, model)?)?;
        session.run(&[(model.ids, ids)], &[], &[model.training.train])?;
    }
    // A dropped session does not mark its worker as finished.
    drop(session);
    Ok(())
}

fn open_session(server: &Arc<Server>, model: &Model) -> Fallible<Session> {
    Ok(Session::on_server(server, model.graph.clone(), Default::default())?)
}

fn global_step(server: &Arc<Server>, model: &Model) -> Fallible<i64> {
    Ok(open_session(server, model)?.run(&[], &[model.training.global_step], &[])?[0].item()?)
}

/// Returns the name and value of each variable of the model, including slots and moving averages, sorted by name.
fn values(server: &Arc<Server>, model: &Model) -> Fallible<Vec<(String, Tensor)>> {
    let mut all = model.training.variables.all();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let outputs: Vec<Output> = all.iter().map(|v| v.value).collect();
    let values = open_session(server, model)?.run(&[], &outputs, &[])?;
    Ok(all.into_iter().map(|v| v.name).zip(values).collect())
}

/// Assigns `value` to the variable `name` of the model.
fn assign(server: &Arc<Server>, model: &Model, name: &str, value: Tensor) -> Fallible {
    let variable = model.graph.find(name).ok_or_else(|| format!("no variable {name}"))?;
    let scope = Scope::new().device(&model.graph.node(variable).device);
    let handle = scope.var_handle(name, value.dtype(), PartialShape::from(value.shape()));
    let assign = scope.assign_variable(handle, scope.constant(value));
    Session::on_server(server, scope.finish()?, Default::default())?.run(&[], &[], &[assign])?;
    Ok(())
}

/// Returns a copy of `matrix` in which all elements of `rows` are 9.
fn overwrite_rows(matrix: &Tensor, rows: &Tensor) -> Fallible<Tensor> {
    let (mut matrix, columns) = (matrix.clone(), matrix.shape()[1]);
    let values = matrix.values_mut::<f32>()?;
    for row in rows.to_i64s()? {
        values[row as usize * columns..][..columns].fill(9.0);
    }
    Ok(matrix)
}

#[test]
fn staged_updates_give_the_same_bits_as_updates_in_place() -> Fallible {
    let optimizers = [
        Optimizer::gradient_descent(0.1),
        Optimizer::momentum(0.1, 0.9),
        Optimizer::adam(0.1),
        Optimizer::adagrad(0.1),
        Optimizer::rms_prop(0.1),
        Optimizer::ftrl(0.1),
    ];
    let average = MovingAverage { warms_up: true, ..MovingAverage::default() };
    let averaged = UpdateOptions { moving_average: Some(average), ..Default::default() };
    for (optimizer, options) in optimizers.iter().flat_map(|o| [(o, UpdateOptions::default()), (o, averaged)])
    {
        let in_place = model(&Strategy::Local, optimizer, options, 1)?;
        let on = server()?;
        let session = open_session(&on, &in_place)?;
        session.run(&[], &[], &[in_place.training.initialize])?;
        for step in 0..STEPS {
            session.run(&[(in_place.ids, ids(step)?)], &[], &[in_place.training.train])?;
        }
        let expected = values(&on, &in_place)?;

        for devices in [1, 2] {
            let staged = model(&single_worker(Aggregation::InOrder), optimizer, options, devices)?;
            let on = server()?;
            train(&on, &staged, STEPS)?;
            assert_eq!(values(&on, &staged)?, expected, "{optimizer:?}, {options:?}, {devices} devices");
        }
    }
    Ok(())
}

/// Sets the last attempt number of `phase` to 5 for each device index in `devices`; all other devices keep their
/// numbers. The index after the devices of the model's variables is the index of the job's shared state.
fn mark_phase_done(server: &Arc<Server>, model: &Model, phase: &str, devices: Range<u32>) -> Fallible {
    for device in devices {
        assign(server, model, &format!("sync_rep_{phase}/{device}"), 5i64.into())?;
    }
    Ok(())
}

/// Pushes gradients of rows that are not in the step's batch, and empties the accumulator of the vector `w`.
fn empty_one_accumulator(server: &Arc<Server>, model: &Model) -> Fallible {
    let session = open_session(server, model)?;
    let nodes_of = |op: &'static str| {
        model.graph.nodes().filter(move |(_, node)| node.op.name() == op).map(|(id, _)| id)
    };
    let pushes: Vec<NodeId> = ["ResourceAccumulatorApplyGradient", "SparseAccumulatorApplyGradient"]
        .into_iter()
        .flat_map(nodes_of)
        .collect();
    assert_eq!(pushes.len(), 2);
    session.run(&[(model.ids, Tensor::vector(&[0i32, 1, 2])?)], &[], &pushes)?;
    let clear = nodes_of("ResourceAccumulatorTakeGradient").next().ok_or("nothing takes gradients")?;
    session.run(&[], &[], &[clear])?;
    Ok(())
}

/// Checks that a job interrupted in each phase resumes with the values of an undisturbed one.
fn check_resumption(aggregation: Aggregation, optimizer: &Optimizer, devices: u32) -> Fallible {
    let case = format!("{aggregation:?}, {devices} devices");
    let lost = || Tensor::vector(&[9.0f32; 3]);
    let model = model(&single_worker(aggregation), optimizer, UpdateOptions::default(), devices)?;
    let undisturbed = server()?;
    train(&undisturbed, &model, STEPS)?;
    let expected = values(&undisturbed, &model)?;

    let on = server()?;
    train(&on, &model, STEPS)?;
    assert_eq!(values(&on, &model)?, expected, "{case}");
    // A commit is simulated that was interrupted before it wrote the table, the global step and, on one device, `w`.
    if devices == 1 {
        assign(&on, &model, "w", lost()?)?;
    }
    for (name, value) in expected.iter().filter(|(name, _)| name.starts_with("table")) {
        assign(&on, &model, name, overwrite_rows(value, &ids(STEPS - 1)?)?)?;
    }
    assign(&on, &model, "global_step", (STEPS - 1).into())?;
    mark_phase_done(&on, &model, "committed", devices - 1..devices + 1)?;
    train(&on, &model, STEPS)?;
    assert_eq!(values(&on, &model)?, expected, "{case}");

    // A preparation is simulated that ended on the first device only: the job must discard its staged values.
    assign(&on, &model, "w/sync_rep_next", lost()?)?;
    mark_phase_done(&on, &model, "prepared", 0..1)?;
    if aggregation == Aggregation::Accumulators {
        empty_one_accumulator(&on, &model)?;
        assign(&on, &model, "sync_rep_taking", 5i64.into())?;
    }
    train(&on, &model, STEPS)?;
    assert_eq!(values(&on, &model)?, expected, "{case}");
    train(&on, &model, STEPS + 2)?;
    train(&undisturbed, &model, STEPS + 2)?;
    assert_eq!(values(&on, &model)?, values(&undisturbed, &model)?, "{case}");
    Ok(())
}

#[test]
fn interrupted_updates_are_resumed() -> Fallible {
    for devices in [1, 2] {
        check_resumption(Aggregation::InOrder, &Optimizer::momentum(0.1, 0.9), devices)?;
        check_resumption(Aggregation::Accumulators, &Optimizer::adam(0.1), devices)?;
    }
    Ok(())
}
