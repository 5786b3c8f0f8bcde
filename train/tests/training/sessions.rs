//! Tests of training sessions: checkpoints, hooks, input, and threads that run during steps.

use super::Fallible;
use anabranch_train::{
    CheckpointState, Dataset, Error, Events, Hook, HookContext, Initializer, Input, Master, MonitoredConfig,
    MonitoredSession, Optimizer, Partitioner, Period, QueueRunner, Retention, Saver, Strategy, Training,
    Variables, hooks, latest_checkpoint, step_of,
};
use client::{Server, ServerConfig, Session};
use graph::{Code, DType, Graph, Output, PartialShape, Scope, Shape, Tensor};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A folder that is removed at the end of the test.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("anabranch-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The error is ignored, because the folder may not have been created.
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Model {
    graph: Graph,
    training: Training,
    saver: Arc<Saver>,
    table: Output,
}

/// Builds a model whose table, in `parts` parts, is trained towards 1.
fn model(parts: usize) -> Fallible<Model> {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let optimizer = Optimizer::momentum(0.1, 0.5);
    let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let first = Initializer::GlorotUniform { seed: 3 };
        let table =
            variables.get_partitioned("table", DType::Float, &[7, 3], &first, Partitioner::fixed_size(parts));
        scope.sum(scope.square(scope.sub(table.value, scope.constant(1.0f32))), &[0, 1], false)
    })?;
    let trained: Vec<Output> = variables.trainable().iter().map(|v| v.value).collect();
    let table = if parts == 1 { trained[0] } else { scope.concat(&trained, 0) };
    let saver = Arc::new(Saver::new(&scope, &variables.all(), Retention { max_to_keep: 2, every: None }));
    Ok(Model { graph: scope.finish()?, training, saver, table })
}

fn server() -> Fallible<Master> {
    Ok(Master::InProcess(Arc::new(Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?)))
}

/// Opens a session that saves a checkpoint at every second step and stops at step `last`.
fn monitored(model: &Model, folder: &Path, last: i64, asynchronous: bool) -> Fallible<MonitoredSession> {
    let every = Period::Steps(2);
    let save = hooks::CheckpointSaver::new(model.saver.clone(), folder, model.training.global_step, every);
    let save = if asynchronous { save.asynchronous() } else { save };
    let all: Vec<Box<dyn Hook>> = vec![Box::new(save), Box::new(hooks::StopAtStep { last_step: last })];
    let config = MonitoredConfig { checkpoint_folder: Some(folder.to_owned()), ..MonitoredConfig::default() };
    let (graph, training) = (model.graph.clone(), model.training.clone());
    Ok(MonitoredSession::new(server()?, graph, training, Some(model.saver.clone()), all, config)?)
}

/// Trains to step `last` and returns the value of the model's table.
fn run(model: &Model, folder: &Path, last: i64, asynchronous: bool) -> Fallible<Tensor> {
    let mut session = monitored(model, folder, last, asynchronous)?;
    while session.run(&[], &[], &[model.training.train])?.is_some() {}
    let table = session.session().run(&[], &[model.table], &[])?.remove(0);
    session.finish()?;
    Ok(table)
}

#[test]
fn training_resumes_from_the_newest_checkpoint() -> Fallible {
    let undisturbed = run(&model(2)?, &Folder::new("undisturbed").0, 9, false)?;
    for asynchronous in [false, true] {
        let folder = Folder::new(if asynchronous { "behind" } else { "between" });
        run(&model(2)?, &folder.0, 5, asynchronous)?;
        let newest = latest_checkpoint(&folder.0)?.ok_or("no checkpoint")?;
        assert!(newest.ends_with("model.ckpt-5"), "{newest:?}");
        assert_eq!(CheckpointState::read(&folder.0)?.all_model_checkpoint_paths.len(), 2);
        assert_eq!(run(&model(2)?, &folder.0, 9, asynchronous)?, undisturbed);
    }
    Ok(())
}

#[test]
fn the_last_step_is_saved_before_training_ends() -> Fallible {
    let saved = |folder: &Folder| -> Fallible<Option<u64>> {
        Ok(latest_checkpoint(&folder.0)?.as_deref().map(step_of))
    };
    let (model, polled, run_to_end) = (model(1)?, Folder::new("asked"), Folder::new("told"));
    // The first loop polls `should_stop`, the second runs until `run` returns `None`.
    let mut session = monitored(&model, &polled.0, 3, true)?;
    while !session.should_stop() {
        assert!(session.run(&[], &[], &[model.training.train])?.is_some());
    }
    session.finish()?;
    assert_eq!(saved(&polled)?, Some(3));
    let mut session = monitored(&model, &run_to_end.0, 3, true)?;
    while session.run(&[], &[], &[model.training.train])?.is_some() {}
    assert_eq!(saved(&run_to_end)?, Some(3), "the session has not finished");
    session.finish()?;
    // A session opened after the last step does nothing.
    let mut late = monitored(&model, &run_to_end.0, 3, true)?;
    assert!(late.should_stop());
    assert!(late.run(&[], &[], &[model.training.train])?.is_none());
    late.finish()?;
    assert_eq!(saved(&run_to_end)?, Some(3));
    Ok(())
}

#[test]
fn variables_are_restored_in_another_partition() -> Fallible {
    let folder = Folder::new("parts");
    let saved = model(3)?;
    let session = Session::local(saved.graph.clone())?;
    session.run(&[], &[], &[saved.training.initialize])?;
    let whole = session.run(&[], &[saved.table], &[])?;
    let prefix = saved.saver.save(&session, &folder.0, "model", 0)?;
    let mut reader = checkpoint::bundle::Reader::open(&prefix)?;
    assert_eq!(reader.read(b"table")?, whole[0]);
    // Only the table is restored with another number of parts, because the slots of each part have names of their own.
    for parts in [2, 5, 7] {
        let scope = Scope::new();
        let variables = Variables::new(&scope);
        let cut = Partitioner::fixed_size(parts);
        let table = variables.get_partitioned("table", DType::Float, &[7, 3], &Initializer::Zeros, cut);
        let saver = Saver::new(&scope, &variables.all(), Retention::default());
        let session = Session::local(scope.finish()?)?;
        saver.restore(&session, &prefix)?;
        assert_eq!(session.run(&[], &[table.value], &[])?, whole, "{parts}");
    }
    Ok(())
}

#[test]
fn savers_of_one_graph_have_separate_snapshots() -> Fallible {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let variable = |name, value| variables.get(name, DType::Float, &[2], &Initializer::Constant(value));
    let (a, b) = (variable("a", 1.0), variable("b", 2.0));
    let initialize = scope.group(&[a.initializer, b.initializer]);
    let change = scope.assign_add_variable(a.handle, scope.constant_vector(&[5.0f32, 5.0]));
    let [of_a, of_b] = [a, b].map(|v| Saver::new(&scope, &[v], Retention::default()));
    let session = Session::local(scope.finish()?)?;
    session.run(&[], &[], &[initialize])?;
    of_a.snapshot(&session)?;
    of_b.snapshot(&session)?;
    session.run(&[], &[], &[change])?;
    for (saver, name, value) in [(&of_b, "b", 2.0f32), (&of_a, "a", 1.0)] {
        let folder = Folder::new(&format!("saver-of-{name}"));
        let prefix = saver.write(&session, &folder.0, "model", 0)?;
        let mut saved = checkpoint::bundle::Reader::open(&prefix)?;
        assert_eq!(saved.read(name.as_bytes())?.values::<f32>()?, [value; 2], "{name}");
        assert_eq!(saved.tensors().count(), 1, "{name}");
    }
    Ok(())
}

#[test]
fn an_incomplete_checkpoint_is_skipped() -> Fallible {
    let folder = Folder::new("torn");
    run(&model(1)?, &folder.0, 4, false)?;
    let newest = latest_checkpoint(&folder.0)?.ok_or("no checkpoint")?;
    let data = checkpoint::bundle::data_file(&newest, 0, 1);
    let bytes = fs::read(&data)?;
    fs::write(&data, &bytes[..bytes.len() / 2])?;
    let older = latest_checkpoint(&folder.0)?.ok_or("no older checkpoint")?;
    assert_ne!(older, newest);
    fs::remove_file(checkpoint::bundle::index_file(&older))?;
    assert_eq!(latest_checkpoint(&folder.0)?, None);
    Ok(())
}

#[test]
fn damaged_data_is_reported_as_a_checksum_error() -> Fallible {
    let folder = Folder::new("damaged");
    let model = model(1)?;
    run(&model, &folder.0, 2, false)?;
    let newest = latest_checkpoint(&folder.0)?.ok_or("no checkpoint")?;
    let data = checkpoint::bundle::data_file(&newest, 0, 1);
    let mut bytes = fs::read(&data)?;
    bytes.iter_mut().for_each(|b| *b ^= 1);
    fs::write(&data, bytes)?;
    let failed = monitored(&model, &folder.0, 4, false).err().ok_or("damaged data was restored")?.to_string();
    assert!(failed.contains("Checksum"), "{failed}");
    Ok(())
}

#[test]
fn variables_without_a_checkpoint_are_not_initialised_again() -> Fallible {
    let Master::InProcess(server) = server()? else { return Err("not in this process".into()) };
    let model = model(2)?;
    let before = Session::on_server(&server, model.graph.clone(), Default::default())?;
    before.run(&[], &[], &[model.training.initialize])?;
    before.run(&[], &[], &[model.training.train])?;
    let lost = model.training.variables.trainable().remove(0);
    let scope = Scope::new();
    let handle = scope.var_handle(&lost.name, DType::Float, PartialShape::from(&lost.shape));
    let destroy = scope.destroy_resource(handle);
    Session::on_server(&server, scope.finish()?, Default::default())?.run(&[], &[], &[destroy])?;
    let (graph, training) = (model.graph.clone(), model.training.clone());
    let config = MonitoredConfig::default();
    let opened = MonitoredSession::new(Master::InProcess(server), graph, training, None, Vec::new(), config);
    let Err(Error::VariablesLost { names, .. }) = opened else { return Err(format!("{opened:?}").into()) };
    assert_eq!(names, [lost.name]);
    Ok(())
}

#[test]
fn variables_missing_in_the_checkpoint_are_named() -> Fallible {
    let folder = Folder::new("subset");
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let optimizer = Optimizer::gradient_descent(0.1);
    let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let [a, b] = ["a", "b"].map(|name| variables.get(name, DType::Float, &[], &Initializer::Zeros).value);
        scope.square(scope.sub(scope.add(a, b), scope.constant(1.0f32)))
    })?;
    let mut saved = variables.all();
    saved.retain(|variable| variable.name != "b");
    let saver = Arc::new(Saver::new(&scope, &saved, Retention::default()));
    let graph = scope.finish()?;
    let before = Session::local(graph.clone())?;
    before.run(&[], &[], &[training.initialize])?;
    saver.save(&before, &folder.0, "m", 1)?;
    let config = MonitoredConfig { checkpoint_folder: Some(folder.0.clone()), ..MonitoredConfig::default() };
    let opened = MonitoredSession::new(server()?, graph, training, Some(saver), Vec::new(), config);
    let Err(Error::VariablesLost { names, .. }) = opened else { return Err(format!("{opened:?}").into()) };
    assert_eq!(names, ["b"]);
    Ok(())
}

/// A hook that, in the first session only, starts a thread that fails with `code`, or panics if `code` is `None`.
struct FailingThread {
    code: Option<Code>,
    started: usize,
}

impl Hook for FailingThread {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> anabranch_train::Result<()> {
        self.started += 1;
        let (is_first, code) = (self.started == 1, self.code);
        context.coordinator.spawn("failing", move |_| match code {
            _ if !is_first => Ok(()),
            Some(code) => Err(client::Error::Status(proto::Status::new(code, "gone")).into()),
            None => panic!("by intention"),
        })?;
        while is_first && context.coordinator.failure().is_none() {
            thread::yield_now();
        }
        Ok(())
    }
}

#[test]
fn training_recovers_from_a_transient_failure_of_a_thread() -> Fallible {
    let run = |code| -> Fallible<(u32, Option<u64>, anabranch_train::Result<()>)> {
        let (model, folder) = (model(1)?, Folder::new(&format!("failing-{code:?}")));
        let every = Period::Steps(100);
        let saver =
            hooks::CheckpointSaver::new(model.saver.clone(), &folder.0, model.training.global_step, every);
        let stop = hooks::StopAtStep { last_step: 5 };
        let all: Vec<Box<dyn Hook>> =
            vec![Box::new(saver), Box::new(stop), Box::new(FailingThread { code, started: 0 })];
        let (graph, training) = (model.graph.clone(), model.training.clone());
        let config = MonitoredConfig::default();
        let mut session = MonitoredSession::new(server()?, graph, training, None, all, config)?;
        while !session.should_stop() {
            session.run(&[], &[], &[model.training.train])?;
        }
        let recoveries = session.recoveries();
        let result = session.finish();
        Ok((recoveries, latest_checkpoint(&folder.0)?.as_deref().map(step_of), result))
    };
    let (recoveries, saved, ended) = run(Some(Code::Unavailable))?;
    ended?;
    assert_eq!((recoveries, saved), (1, Some(5)));
    for (code, expected) in [(Some(Code::Internal), "gone"), (None, "the thread failing has panicked")] {
        let error = run(code)?.2.err().ok_or("the failure was not reported")?;
        assert!(error.to_string().contains(expected), "{error}");
    }
    Ok(())
}

/// Builds a model whose loss is not a number after a few steps.
fn diverging() -> Fallible<(Scope, Variables, Training)> {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let optimizer = Optimizer::gradient_descent(1e30);
    let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        scope.square(variables.get("w", DType::Float, &[], &Initializer::Constant(1.0)).value)
    })?;
    Ok((scope, variables, training))
}

#[test]
fn failed_training_is_not_saved() -> Fallible {
    let folder = Folder::new("not-saved");
    let (scope, variables, training) = diverging()?;
    let saver = Arc::new(Saver::new(&scope, &variables.all(), Retention::default()));
    let every = Period::Steps(100);
    let saves = hooks::CheckpointSaver::new(saver, &folder.0, training.global_step, every);
    let guards = hooks::NanGuard { loss: training.loss, fails: true };
    let all: Vec<Box<dyn Hook>> = vec![Box::new(saves), Box::new(guards)];
    let (train, config) = (training.train, MonitoredConfig::default());
    let mut session = MonitoredSession::new(server()?, scope.finish()?, training, None, all, config)?;
    while session.run(&[], &[], &[train]).is_ok() {}
    assert!(session.should_stop());
    let error = session.finish().err().ok_or("training succeeded")?;
    assert!(matches!(error, Error::NotANumber { .. }), "{error}");
    assert_eq!(latest_checkpoint(&folder.0)?.as_deref().map(step_of), Some(0));
    Ok(())
}

#[test]
fn failed_removals_of_checkpoints_are_retried() -> Fallible {
    let folder = Folder::new("fragments");
    let model = model(1)?;
    let session = Session::local(model.graph.clone())?;
    session.run(&[], &[], &[model.training.initialize])?;
    let save = |step| model.saver.save(&session, &folder.0, "m", step);
    let made = |path: &str| -> Fallible<PathBuf> {
        let made = folder.0.join(path);
        fs::create_dir_all(made.parent().ok_or("no folder")?)?;
        fs::write(&made, "rest")?;
        Ok(made)
    };
    // Files that interrupted saves of another process left behind; one save has another checkpoint name.
    let (cut_off, other_name) = (made("m-0_temp/part-0")?, made("n-0_temp/part-0")?);
    save(1)?;
    assert!(other_name.exists() && !cut_off.exists());
    // A save of this process fails, because a file has the name of its temporary folder.
    let in_the_way = made("m-2_temp")?;
    assert!(save(2).is_err());
    fs::remove_file(in_the_way)?;
    let cut_off = made("m-2_temp/part-0")?;
    // A folder with the name of a data file of the first checkpoint makes the removal of that checkpoint fail.
    let obstacle = made("m-1.data-of-nobody/x")?;
    save(3)?;
    assert!(!cut_off.exists());
    save(4)?;
    assert!(obstacle.exists());
    assert_eq!(latest_checkpoint(&folder.0)?.as_deref().map(step_of), Some(4));
    fs::remove_dir_all(obstacle.parent().ok_or("no folder")?)?;
    save(5)?;
    let left = fs::read_dir(&folder.0)?.filter_map(Result::ok).map(|e| e.file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().starts_with("m-1.")));
    Ok(())
}

#[test]
fn standard_hooks_work() -> Fallible {
    let folder = Folder::new("events");
    let (scope, _, training) = diverging()?;
    let summary = scope.scalar_summary("loss", training.loss);
    let last = hooks::FinalOps { fetches: vec![training.global_step], ..Default::default() };
    let events = Events::create(&folder.0)?;
    let every = Period::Steps(1);
    let all: Vec<Box<dyn Hook>> = vec![
        Box::new(hooks::NanGuard { loss: training.loss, fails: false }),
        Box::new(hooks::SummarySaver::new(summary, every, events.clone())),
        Box::new(hooks::StepCounter::new(every, Some(events.clone()))),
        Box::new(hooks::LoggingTensors::new(vec![("loss".into(), training.loss)], every)),
        Box::new(hooks::Profiler::new(Period::Steps(100), events)),
        Box::new(last.clone()),
    ];
    let config = MonitoredConfig::default();
    let train = training.train;
    let mut session = MonitoredSession::new(server()?, scope.finish()?, training, None, all, config)?;
    let mut steps = 0;
    while session.run(&[], &[], &[train])?.is_some() {
        steps += 1;
        assert!(steps < 10, "the loss did not stop it");
    }
    session.finish()?;
    assert_eq!(last.values.lock()[0].item::<i64>()?, steps);
    let file = fs::read_dir(&folder.0)?.next().ok_or("no event file")??.path();
    let mut records =
        kernels::objects::io::RecordReader::open(&file, kernels::objects::io::Compression::None)?;
    let mut all = Vec::new();
    while let Some(record) = records.next_record()? {
        all.push(String::from_utf8_lossy(&record).into_owned());
    }
    for expected in ["brain.Event:2", "loss", "global_step/sec", "step_1", "VarHandleOp"] {
        assert!(all.iter().any(|event| event.contains(expected)), "no {expected} in {} events", all.len());
    }
    Ok(())
}

#[test]
fn input_ends_training() -> Fallible {
    sums_of_input(|input, _| input)
}

#[test]
fn prefetched_input_ends_training_once_all_elements_are_taken() -> Fallible {
    sums_of_input(|input, scope| input.prefetch_to_device(&scope.device("/device:CPU:0"), 2))
}

fn sums_of_input(prefetch: impl Fn(Input, &Scope) -> Input) -> Fallible {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let numbers: Vec<f32> = (0..10).map(|i| i as f32).collect();
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let npy = Folder::new(&format!("npy-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir_all(&npy.0)?;
    let file = npy.0.join("x.npy");
    fs::write(&file, checkpoint::npy::encode(&Tensor::from_slice(&numbers, Shape::new(&[10])?)?)?)?;
    // This worker gets five of ten elements, repeated twice, in batches of two; the ninth element is a batch of its
    // own.
    let input = Dataset::from_npy(&scope, &[&file])?.shard(2, 1).shuffle(5, 3).repeat(Some(2)).take(9);
    let input = prefetch(input.batch(2, false).prefetch(1).input("input"), &scope);
    let optimizer = Optimizer::gradient_descent(0.0);
    let training = Strategy::Local.minimize(
        &scope,
        &variables,
        &optimizer,
        &input.next,
        |scope, variables, batch| {
            let w = variables.get("w", DType::Float, &[], &Initializer::Constant(1.0));
            scope.mul(scope.sum(batch[0], &[0], false), w.value)
        },
    )?;
    let (train, loss, hook) = (training.train, training.loss, input.hook());
    let mut session = MonitoredSession::new(
        server()?,
        scope.finish()?,
        training,
        None,
        vec![hook],
        MonitoredConfig::default(),
    )?;
    let mut sums = Vec::new();
    while let Some(values) = session.run(&[], &[loss], &[train])? {
        sums.push(values[0].item::<f32>()?);
    }
    assert_eq!(sums.len(), 5);
    let total: f32 = sums.iter().sum();
    // `total` is twice the sum of the odd numbers, 50, minus the one element that `take` cut off.
    assert!([1.0, 3.0, 5.0, 7.0, 9.0].contains(&(50.0 - total)), "{sums:?}");
    Ok(session.finish()?)
}

#[test]
fn csv_and_record_files_are_read() -> Fallible {
    let folder = Folder::new("files");
    fs::create_dir_all(&folder.0)?;
    let csv = folder.0.join("x.csv");
    fs::write(&csv, "a,b\n1,2.5\n3,\n")?;
    let records = folder.0.join("x.records");
    let mut writer =
        kernels::objects::io::RecordWriter::create(&records, kernels::objects::io::Compression::None)?;
    writer.write(b"first")?;
    writer.write(b"second")?;
    writer.flush()?;
    let scope = Scope::new();
    let defaults = [Tensor::vector(&[0i32])?, Tensor::vector(&[0.5f32])?];
    let (csv, records) = (csv.display().to_string(), records.display().to_string());
    let lines = Dataset::from_csv(&scope, &[&csv], true, &defaults).batch(2, true).input("lines");
    let strings = Dataset::from_tf_record(&scope, &[&records]).batch(2, true).input("records");
    let session = Session::local(scope.finish()?)?;
    session.run(&[], &[], &[lines.initialize, strings.initialize])?;
    let values = session.run(&[], &[lines.next[0], lines.next[1], strings.next[0]], &[])?;
    assert_eq!(values[0].values::<i32>()?, [1, 3]);
    assert_eq!(values[1].values::<f32>()?, [2.5, 0.5]);
    assert_eq!(values[2].as_strings()?, [&b"first"[..], b"second"]);
    Ok(())
}

#[test]
fn queue_runners_fill_the_queue_and_end() -> Fallible {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let queue = scope
        .op("FIFOQueueV2")
        .attr("component_types", vec![DType::Float])
        .attr("capacity", 3i64)
        .attr("shared_name", "numbers")
        .output();
    let element = scope.constant(2.0f32);
    let enqueue = scope.op("QueueEnqueueV2").input(queue).input(vec![element]).node();
    let close =
        |cancels: bool| scope.op("QueueCloseV2").input(queue).attr("cancel_pending_enqueues", cancels).node();
    let runner = QueueRunner { enqueue: vec![enqueue; 2], close: close(false), cancel: close(true) };
    let taken = scope.op("QueueDequeueV2").input(queue).attr("component_types", vec![DType::Float]).output();
    let input = scope.reshape(taken, &[]);
    let optimizer = Optimizer::gradient_descent(0.1);
    let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let w = variables.get("w", DType::Float, &[], &Initializer::Zeros);
        scope.square(scope.sub(w.value, input))
    })?;
    let train = training.train;
    let all: Vec<Box<dyn Hook>> =
        vec![QueueRunner::hook(vec![runner]), Box::new(hooks::StopAtStep { last_step: 20 })];
    let config = MonitoredConfig::default();
    let mut session = MonitoredSession::new(server()?, scope.finish()?, training, None, all, config)?;
    let mut steps = 0;
    while session.run(&[], &[], &[train])?.is_some() {
        steps += 1;
    }
    assert_eq!(steps, 20);
    Ok(session.finish()?)
}
