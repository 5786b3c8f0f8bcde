//! Workers that hold dense variables, with tables on parameter servers, on a cluster in this process.

use super::Fallible;
use super::all_reduce::{COLUMNS, ROWS, Replica, Workers, batch, config, open, replica_of, train_to_the_end};
use super::sessions::Folder;
use anabranch_train::{
    Average, Error, Hook, HookContext, Initializer, LearningRate, Master, MonitoredConfig, MonitoredSession,
    MovingAverage, Optimizer, Partitioner, Period, RunValues, Strategy, Tables, Uneven, UpdateOptions,
    VariablePlacement, Variables, Wire, hooks,
};
use client::{Server, ServerConfig, Session};
use graph::{Code, DType, NodeId, Output, PartialShape, Scope, Tensor};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The tables of the model, of which the second server holds one part.
const PARTS: [&str; 3] = ["rows/part_0", "rows/part_1", "rows/part_2"];
const STEPS: usize = 6;

/// The values of all variables by name.
type Values = BTreeMap<String, Tensor>;

/// Adds the square error of a linear layer plus rows of a table in parts: the mean or the sum over the batch.
fn loss(scope: &Scope, variables: &Variables, batch: &[Output], is_mean: bool) -> Output {
    let cut = Partitioner::fixed_size(PARTS.len());
    let rows = variables.get_partitioned("rows", DType::Float, &[5, 1], &Initializer::Zeros, cut);
    let w = variables.get("w", DType::Float, &[COLUMNS, 1], &Initializer::Constant(0.5));
    let ids = scope.cast(scope.abs(scope.squeeze(batch[1], &[1])), DType::Int32);
    let looked_up = variables.embedding_lookup(scope, &rows.parts, ids, Default::default());
    let error = scope.square(scope.sub(scope.add(scope.matmul(batch[0], w.value), looked_up), batch[1]));
    if is_mean { scope.mean(error, &[0, 1], false) } else { scope.sum(error, &[0, 1], false) }
}

/// Adds the loss of [`loss`] for a model that consists of the table only.
fn loss_of_table(scope: &Scope, variables: &Variables, batch: &[Output], _: bool) -> Output {
    let cut = Partitioner::fixed_size(PARTS.len());
    let rows = variables.get_partitioned("rows", DType::Float, &[5, 1], &Initializer::Zeros, cut);
    let ids = scope.cast(scope.abs(scope.squeeze(batch[1], &[1])), DType::Int32);
    let looked_up = variables.embedding_lookup(scope, &rows.parts, ids, Default::default());
    scope.mean(scope.square(scope.sub(looked_up, batch[1])), &[0, 1], false)
}

fn on_servers(ps_tasks: u32) -> Tables {
    Tables::OnParameterServers { ps_tasks, placement: VariablePlacement::RoundRobin }
}

fn hybrid(worker: u32) -> Strategy {
    hybrid_with(worker, Average::Mean, Wire::F32, Uneven::Fail)
}

fn hybrid_with(worker: u32, average: Average, wire: Wire, uneven: Uneven) -> Strategy {
    Strategy::AllReduce { worker, workers: 2, least: 2, average, wire, uneven, tables: on_servers(2) }
}

fn replica(worker: u32, optimizer: &Optimizer) -> Fallible<Replica> {
    replica_of(loss, &hybrid(worker), optimizer, UpdateOptions::default(), true)
}

fn values(session: &Session, replica: &Replica) -> Fallible<Values> {
    let names = replica.training.variables.all().into_iter().map(|variable| variable.name);
    Ok(names.zip(session.run(&[], &replica.values, &[])?).collect())
}

/// Runs the steps `from..to` with a worker's half of the rows.
fn run_steps(
    session: &mut MonitoredSession,
    replica: &Replica,
    worker: u32,
    (from, to): (usize, usize),
) -> Fallible {
    for step in from..to {
        let [x, y] = batch(4 * worker as usize, 4 * worker as usize + 4, step)?;
        session.run(&[(replica.x, x), (replica.y, y)], &[], &[replica.training.train])?;
    }
    Ok(())
}

/// Trains with two workers. Returns each worker's view of the variables.
fn train(
    workers: &Workers,
    build: impl Fn(&Strategy) -> Fallible<Replica> + Sync,
    strategy: impl Fn(u32) -> Strategy + Sync,
) -> Fallible<Vec<Values>> {
    workers.run(|worker, server| {
        let replica = build(&strategy(worker))?;
        let mut session = open(server, &replica, worker)?;
        run_steps(&mut session, &replica, worker, (0, STEPS))?;
        let values = values(session.session(), &replica)?;
        session.finish()?;
        Ok(values)
    })
}

/// Trains on the whole batch with one process. Returns the variables.
fn train_alone(build: impl Fn(&Strategy) -> Fallible<Replica>) -> Fallible<Values> {
    let replica = build(&Strategy::Local)?;
    let session = Session::local(replica.graph.clone())?;
    session.run(&[], &[], &[replica.training.initialize])?;
    for step in 0..STEPS {
        let [x, y] = batch(0, ROWS, step)?;
        session.run(&[(replica.x, x), (replica.y, y)], &[], &[replica.training.train])?;
    }
    values(&session, &replica)
}

/// Returns the largest difference between the numbers of the same variables.
fn difference(a: &Values, b: &Values) -> Fallible<f32> {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    let mut most = 0.0f32;
    for (a, b) in a.values().zip(b.values()) {
        if a.dtype() == DType::Int64 {
            assert_eq!(a, b);
            continue;
        }
        assert_eq!(a.shape(), b.shape());
        for (a, b) in a.values::<f32>()?.iter().zip(b.values::<f32>()?) {
            most = most.max((a - b).abs());
        }
    }
    Ok(most)
}

/// Checks that the variables of all workers have the same bits. Returns the variables.
#[track_caller]
fn common(mut all: Vec<Values>) -> Values {
    for other in &all[1..] {
        assert_eq!(&all[0], other);
    }
    all.swap_remove(0)
}

#[test]
fn tables_and_dense_variables_train_like_one_process() -> Fallible {
    let rate =
        LearningRate::ExponentialDecay { initial: 0.05, decay_steps: 2, decay_rate: 0.8, staircase: false };
    let averages = UpdateOptions {
        moving_average: Some(MovingAverage { decay: 0.9, warms_up: true }),
        ..UpdateOptions::default()
    };
    for (optimizer, options) in [
        (Optimizer::gradient_descent(rate), UpdateOptions::default()),
        (Optimizer::adagrad(0.1), averages),
        (Optimizer::adam(0.05), UpdateOptions::default()),
    ] {
        for loss in [loss, loss_of_table] {
            let build = |strategy: &Strategy| replica_of(loss, strategy, &optimizer, options, true);
            let together = common(train(&Workers::start_with(2, 2)?, build, hybrid)?);
            let difference = difference(&together, &train_alone(build)?)?;
            assert!(difference < 1e-5, "{optimizer:?}: {difference}");
        }
    }
    Ok(())
}

#[test]
fn tables_take_sums_and_rounded_gradients() -> Fallible {
    let optimizer = Optimizer::momentum(0.005, 0.9);
    let build = |strategy: &Strategy| replica_of(loss, strategy, &optimizer, UpdateOptions::default(), false);
    let alone = train_alone(build)?;
    for (wire, differences) in [(Wire::F32, 0.0..1e-5), (Wire::Bf16, 1e-6..0.1)] {
        let strategy = |worker| hybrid_with(worker, Average::Sum, wire, Uneven::Fail);
        let together = common(train(&Workers::start_with(2, 2)?, build, strategy)?);
        let difference = difference(&together, &alone)?;
        assert!(differences.contains(&difference), "{wire:?}: {difference}");
    }
    Ok(())
}

#[test]
fn workers_whose_inputs_have_ended_go_on_with_the_tables() -> Fallible {
    let join = |worker| hybrid_with(worker, Average::Mean, Wire::F32, Uneven::Join);
    let batches = |from: usize, steps: std::ops::Range<usize>| -> Fallible<Vec<[Tensor; 2]>> {
        steps.map(|step| batch(from, from + 4, step)).collect()
    };
    let optimizer = Optimizer::momentum(0.02, 0.9);
    let workers = Workers::start_with(2, 2)?;
    let together = workers.run(|worker, server| {
        let own = if worker == 0 { batches(0, 0..3)? } else { batches(4, 0..7)? };
        train_to_the_end(loss, server, &join(worker), &optimizer, &own, (worker, i64::MAX))
    })?;
    let server = Arc::new(Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?);
    let rest = batches(4, 3..7)?;
    let both = (0..3).map(|step| batch(0, ROWS, step)).collect::<Fallible<Vec<_>>>()?;
    train_to_the_end(loss, &server, &Strategy::Local, &optimizer, &both, (0, i64::MAX))?;
    let alone = train_to_the_end(loss, &server, &Strategy::Local, &optimizer, &rest, (0, i64::MAX))?;
    // The order of creation differs between the strategies, so the numbers are compared sorted.
    let sorted = |values: &[Tensor]| -> Fallible<Vec<f32>> {
        let floats = values.iter().filter(|value| value.dtype() == DType::Float);
        let mut all = floats.map(Tensor::values::<f32>).collect::<Result<Vec<_>, _>>()?.concat();
        all.sort_by(f32::total_cmp);
        Ok(all)
    };
    for values in &together {
        let (found, expected) = (sorted(values)?, sorted(&alone)?);
        assert_eq!(found.len(), expected.len());
        let is_close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(is_close, "{found:?}, expected {expected:?}");
    }
    Ok(())
}

#[test]
fn parts_and_their_slots_are_on_parameter_servers() -> Fallible {
    let device = |replica: &Replica, name: &str| -> Fallible<String> {
        let found = replica.training.variables.find(name).ok_or_else(|| format!("no variable {name}"))?;
        Ok(replica.graph.node(found.handle.node).device.to_string())
    };
    let rate = LearningRate::from(0.1).warmed_up(4);
    let options = UpdateOptions { moving_average: Some(MovingAverage::default()), ..Default::default() };
    for worker in 0..2 {
        let replica = replica_of(loss, &hybrid(worker), &Optimizer::adam(rate.clone()), options, true)?;
        for name in ["w", "w/Adam", "global_step", "beta1_power"] {
            assert_eq!(device(&replica, name)?, format!("/job:worker/task:{worker}"), "{name}");
        }
        for (part, task) in PARTS.iter().zip([0, 1, 0]) {
            let on_server = format!("/job:ps/task:{task}/device:CPU:0");
            assert_eq!(device(&replica, part)?, on_server);
            assert_eq!(device(&replica, &format!("{part}/Adam_1"))?, on_server);
        }
        // A part is updated by only one worker.
        let step = graph::passes::prune(&replica.graph, &[replica.training.train])?;
        let updates = |part: &str| -> Fallible<bool> {
            let handle = step.find(part).ok_or("the step does not use a part")?;
            Ok(step.consumers(handle).any(|user| step.node(user.node).op.name() == "Switch"))
        };
        for (i, part) in PARTS.iter().enumerate() {
            assert_eq!(updates(part)?, i % 2 == worker as usize, "{part}");
        }
        // Both workers run a step under the same id, so the keys of tensors between servers would collide; no such
        // tensors may exist.
        for (id, node) in step.nodes().filter(|(_, node)| node.device.contains("/job:ps/")) {
            let inputs = step.inputs(id).into_iter().map(|input| input.node).chain(step.control_inputs(id));
            for input in inputs.map(|input| step.node(input)) {
                let is_between = input.device.contains("/job:ps/") && input.device != node.device;
                assert!(!is_between, "{} reads {}", node.name, input.name);
            }
        }
    }
    Ok(())
}

/// Returns the handle of a variable on a device, in a separate graph.
fn handle(scope: &Scope, device: &str, name: &str, dtype: DType, shape: PartialShape) -> Output {
    let handle = scope.op("VarHandleOp").device(device).attr("dtype", dtype).attr("shape", shape);
    handle.attr("shared_name", name).output()
}

/// Sets the count of a part's updates.
fn set_count(server: &Arc<Server>, part: usize, count: i64) -> Fallible {
    let scope = Scope::new();
    let (device, name) =
        (format!("/job:ps/task:{}/device:CPU:0", part % 2), format!("{}/all_reduce_steps", PARTS[part]));
    let handle = handle(&scope, &device, &name, DType::Int64, PartialShape::scalar());
    let set = scope.colocate_with(handle.node).assign_variable(handle, scope.constant(count));
    Session::on_server(server, scope.finish()?, Default::default())?.run(&[], &[], &[set])?;
    Ok(())
}

/// Destroys the variables whose names `is_lost` selects.
fn destroy(server: &Arc<Server>, replica: &Replica, is_lost: impl Fn(&str) -> bool) -> Fallible {
    let scope = Scope::new();
    let all = replica.training.variables.all();
    let lost = all.iter().filter(|variable| is_lost(&variable.name));
    let destroy: Vec<NodeId> = lost
        .map(|variable| {
            let device = replica.graph.node(variable.handle.node).device.to_string();
            let shape = PartialShape::from(&variable.shape);
            let handle = handle(&scope, &device, &variable.name, variable.dtype, shape);
            scope.colocate_with(handle.node).destroy_resource(handle)
        })
        .collect();
    assert!(!destroy.is_empty());
    Session::on_server(server, scope.finish()?, Default::default())?.run(&[], &[], &destroy)?;
    Ok(())
}

fn is_of_table(name: &str) -> bool {
    name.starts_with("rows/")
}

/// Trains for three steps, and for one more in new sessions of both workers, before which `between` is called. Returns
/// the values after the three steps, after the opening of the new sessions, and at the end.
fn train_twice(
    workers: &Workers,
    between: impl Fn(&Arc<Server>, &Replica) -> Fallible,
) -> Fallible<[Values; 3]> {
    let optimizer = Optimizer::momentum(0.02, 0.9);
    let train = |(from, to): (usize, usize)| {
        workers.run(|worker, server| {
            let replica = replica(worker, &optimizer)?;
            let mut session = open(server, &replica, worker)?;
            let found = values(session.session(), &replica)?;
            run_steps(&mut session, &replica, worker, (from, to))?;
            let after = values(session.session(), &replica)?;
            session.finish()?;
            Ok((found, after))
        })
    };
    let first: Vec<Values> = train((0, 3))?.into_iter().map(|(_, after)| after).collect();
    between(&workers.servers[0], &replica(0, &optimizer)?)?;
    let (found, after): (Vec<Values>, Vec<Values>) = train((3, 4))?.into_iter().unzip();
    Ok([common(first), common(found), common(after)])
}

#[test]
fn a_worker_without_variables_gets_those_of_the_other_and_tables_stay() -> Fallible {
    let undisturbed = train_twice(&Workers::start_with(2, 2)?, |_, _| Ok(()))?;
    let lose = |server: &Arc<Server>, replica: &Replica| destroy(server, replica, |name| !is_of_table(name));
    let disturbed = train_twice(&Workers::start_with(2, 2)?, lose)?;
    assert_eq!(disturbed[0], disturbed[1]);
    assert_eq!(disturbed, undisturbed);
    Ok(())
}

#[test]
fn a_repeated_step_does_not_update_a_part_again() -> Fallible {
    let undisturbed = train_twice(&Workers::start_with(2, 2)?, |_, _| Ok(()))?;
    // The first part has the update of a step that failed before it updated the other parts.
    let [_, before, after] = train_twice(&Workers::start_with(2, 2)?, |server, _| set_count(server, 0, 4))?;
    assert_eq!(before, undisturbed[1]);
    assert_eq!(after[PARTS[0]], before[PARTS[0]]);
    assert_ne!(undisturbed[2][PARTS[0]], before[PARTS[0]]);
    for name in after.keys().filter(|name| !name.starts_with(PARTS[0])) {
        assert_eq!(after[name], undisturbed[2][name], "{name}");
    }
    Ok(())
}

#[test]
fn parts_of_another_step_are_not_used() -> Fallible {
    let error = train_twice(&Workers::start_with(2, 2)?, |server, _| set_count(server, 1, 2)).err();
    let error = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("lost their values: rows/part_1;"), "{error}");
    Ok(())
}

/// A hook that destroys the tables after the third step, and requests a new session.
struct LosesTables {
    destroy: Option<NodeId>,
}

impl Hook for LosesTables {
    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> anabranch_train::Result<()> {
        let Some(destroy) = self.destroy.take_if(|_| run.global_step == Some(3)) else { return Ok(()) };
        context.session.run(&[], &[], &[destroy])?;
        Err(client::Error::Status(proto::Status::new(Code::Aborted, "the tables are gone")).into())
    }
}

/// Trains for five steps with the same batch, and loses the tables after the third if `is_disturbed`. The chief saves
/// every two steps if there is a folder.
fn train_to_step_five(is_disturbed: bool, folder: Option<&Path>) -> Fallible<Vec<Result<Values, Error>>> {
    Workers::start_with(2, 2)?.run(|worker, server| {
        let replica = replica(worker, &Optimizer::adagrad(0.1))?;
        let mut all: Vec<Box<dyn Hook>> = vec![Box::new(hooks::StopAtStep { last_step: 5 })];
        if is_disturbed {
            all.push(Box::new(LosesTables { destroy: Some(replica.destroy_parts) }));
        }
        if let Some(folder) = folder {
            let (saver, step) = (replica.saver.clone(), replica.training.global_step);
            all.push(Box::new(hooks::CheckpointSaver::new(saver, folder, step, Period::Steps(2))));
        }
        let config = MonitoredConfig { checkpoint_folder: folder.map(Path::to_owned), ..config(worker) };
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let (master, saver) = (Master::InProcess(server.clone()), folder.map(|_| replica.saver.clone()));
        let mut session = MonitoredSession::new(master, graph, training, saver, all, config)?;
        let [x, y] = batch(4 * worker as usize, 4 * worker as usize + 4, 0)?;
        let feeds = [(replica.x, x), (replica.y, y)];
        loop {
            match session.run(&feeds, &[], &[replica.training.train]) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return Ok(Err(error)),
            }
        }
        let values = values(session.session(), &replica)?;
        session.finish()?;
        Ok(Ok(values))
    })
}

#[test]
fn lost_tables_are_restored_with_all_variables() -> Fallible {
    let undisturbed = train_to_step_five(false, None)?.into_iter().collect::<Result<Vec<_>, _>>()?;
    let folder = Folder::new("hybrid");
    let restored = train_to_step_five(true, Some(&folder.0))?.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(common(restored), common(undisturbed));
    Ok(())
}

#[test]
fn lost_tables_without_a_checkpoint_end_the_job() -> Fallible {
    for error in train_to_step_five(true, None)? {
        let Err(Error::VariablesLost { names, .. }) = &error else {
            return Err(format!("{error:?}").into());
        };
        assert!(names.iter().any(|name| name == PARTS[1]), "{names:?}");
        assert!(!names.iter().any(|name| name == "w"), "{names:?}");
    }
    Ok(())
}

#[test]
fn tables_need_a_parameter_server_and_all_workers() {
    let (average, wire, uneven) = (Average::Mean, Wire::F32, Uneven::Fail);
    let of = |workers, ps_tasks| {
        let tables = on_servers(ps_tasks);
        Strategy::AllReduce { worker: 0, workers, least: 1, average, wire, uneven, tables }
    };
    for (strategy, text) in
        [(of(1, 0), "tables on 0 parameter servers"), (of(2, 1), "needs all 2 workers: set least to 2")]
    {
        let refused = replica_of(loss, &strategy, &Optimizer::adagrad(0.1), UpdateOptions::default(), true);
        let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains(text), "{refused}");
    }
}
