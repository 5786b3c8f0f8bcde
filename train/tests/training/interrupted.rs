//! Synchronous updates are prepared aside, then committed: the same bits as in place, and nothing lost where one was
//! cut off.

use super::Fallible;
use anabranch_train::{
    Aggregation, Initializer, Master, MonitoredConfig, MonitoredSession, MovingAverage, Optimizer, Strategy,
    SyncMode, Training, UpdateOptions, Variables,
};
use client::{Server, ServerConfig, Session};
use graph::{DType, Graph, Output, PartialShape, Scope, Tensor};
use std::sync::Arc;

const STEPS: i64 = 4;

struct Model {
    graph: Graph,
    training: Training,
    ids: Output,
}

/// Rows of a table, some of them more than once, times a vector.
fn model(strategy: &Strategy, optimizer: &Optimizer, options: UpdateOptions) -> Fallible<Model> {
    let root = Scope::new();
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

fn alone(aggregation: Aggregation) -> Strategy {
    let sync = SyncMode::Sync { replicas_to_aggregate: 1, backup: 0, aggregation };
    Strategy::ParameterServer { ps_tasks: 0, worker: 0, placement: Default::default(), sync }
}

fn ids(step: i64) -> Fallible<Tensor> {
    let step = step as i32;
    Ok(Tensor::vector(&[step % 6, 4, step % 6, (step + 3) % 6])?)
}

fn server() -> Fallible<Arc<Server>> {
    Ok(Arc::new(Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?))
}

/// Goes on to this step, in a session of its own.
fn train(server: &Arc<Server>, model: &Model, last: i64) -> Fallible {
    let (graph, training) = (model.graph.clone(), model.training.clone());
    let master = Master::InProcess(server.clone());
    let config = MonitoredConfig::default();
    let mut session = MonitoredSession::new(master, graph, training, None, Vec::new(), config)?;
    while global_step(server, model)? < last {
        let ids = ids(global_step(server, model)?)?;
        session.run(&[(model.ids, ids)], &[], &[model.training.train])?;
    }
    // Others may join: this worker does not finish.
    drop(session);
    Ok(())
}

fn beside(server: &Arc<Server>, model: &Model) -> Fallible<Session> {
    Ok(Session::on(server, model.graph.clone(), Default::default())?)
}

fn global_step(server: &Arc<Server>, model: &Model) -> Fallible<i64> {
    Ok(beside(server, model)?.run(&[], &[model.training.global_step], &[])?[0].item()?)
}

/// What training has made, with slots and averages, by name.
fn values(server: &Arc<Server>, model: &Model) -> Fallible<Vec<(String, Tensor)>> {
    let mut all = model.training.variables.all();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let outputs: Vec<Output> = all.iter().map(|v| v.value).collect();
    let values = beside(server, model)?.run(&[], &outputs, &[])?;
    Ok(all.into_iter().map(|v| v.name).zip(values).collect())
}

/// Assigns a variable of the parameter server by its name.
fn set(server: &Arc<Server>, name: &str, value: Tensor) -> Fallible {
    let scope = Scope::new();
    let handle = scope.var_handle(name, value.dtype(), PartialShape::from(value.shape()));
    let set = scope.assign_variable(handle, scope.constant(value));
    Session::on(server, scope.finish()?, Default::default())?.run(&[], &[], &[set])?;
    Ok(())
}

/// A matrix of which these rows are gone.
fn without(matrix: &Tensor, rows: &Tensor) -> Fallible<Tensor> {
    let (mut matrix, columns) = (matrix.clone(), matrix.shape()[1]);
    let values = matrix.values_mut::<f32>()?;
    for row in rows.to_i64s()? {
        values[row as usize * columns..][..columns].fill(9.0);
    }
    Ok(matrix)
}

#[test]
fn aside_gives_the_bits_of_in_place() -> Fallible {
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
        let in_place = model(&Strategy::Local, optimizer, options)?;
        let on = server()?;
        let session = beside(&on, &in_place)?;
        session.run(&[], &[], &[in_place.training.initialize])?;
        for step in 0..STEPS {
            session.run(&[(in_place.ids, ids(step)?)], &[], &[in_place.training.train])?;
        }
        let expected = values(&on, &in_place)?;

        let aside = model(&alone(Aggregation::InOrder), optimizer, options)?;
        let on = server()?;
        train(&on, &aside, STEPS)?;
        assert_eq!(values(&on, &aside)?, expected, "{optimizer:?}, {options:?}");
    }
    Ok(())
}

#[test]
fn what_was_cut_off_is_taken_up_again() -> Fallible {
    let lost = || Tensor::vector(&[9.0f32; 3]);
    for (aggregation, optimizer) in [
        (Aggregation::InOrder, Optimizer::momentum(0.1, 0.9)),
        (Aggregation::Accumulators, Optimizer::adam(0.1)),
    ] {
        let model = model(&alone(aggregation), &optimizer, UpdateOptions::default())?;
        let undisturbed = server()?;
        train(&undisturbed, &model, STEPS)?;
        let expected = values(&undisturbed, &model)?;

        let on = server()?;
        train(&on, &model, STEPS)?;
        assert_eq!(values(&on, &model)?, expected);
        // A commit did not reach these, nor the step.
        set(&on, "w", lost()?)?;
        for (name, value) in expected.iter().filter(|(name, _)| name.starts_with("table")) {
            set(&on, name, without(value, &ids(STEPS - 1)?)?)?;
        }
        set(&on, "global_step", (STEPS - 1).into())?;
        set(&on, "sync_rep_committed/1", 5i64.into())?;
        train(&on, &model, STEPS)?;
        assert_eq!(values(&on, &model)?, expected, "{aggregation:?}");
        // A preparation ended on one device alone: what it left is of no use, and nothing else has changed.
        set(&on, "w/sync_rep_next", lost()?)?;
        set(&on, "sync_rep_prepared/0", 5i64.into())?;
        set(&on, "sync_rep_taking", if aggregation == Aggregation::Accumulators { 5i64 } else { -1 }.into())?;
        train(&on, &model, STEPS)?;
        assert_eq!(values(&on, &model)?, expected, "{aggregation:?}");
        train(&on, &model, STEPS + 2)?;
        train(&undisturbed, &model, STEPS + 2)?;
        assert_eq!(values(&on, &model)?, values(&undisturbed, &model)?, "{aggregation:?}");
    }
    Ok(())
}
