//! TensorBoard shows the summaries that a training session has written.

use crate::support::folder::Folder;
use crate::support::{Fallible, environment};
use anabranch::client::{Server, ServerConfig};
use anabranch::graph::{DType, Scope, Shape, Tensor};
use anabranch::train::{
    Events, Hook, Initializer, Master, MonitoredConfig, MonitoredSession, Optimizer, Period, Strategy,
    Variables, hooks,
};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const TENSORBOARD: &str = "tensorboard==2.21.*";

const STEPS: i64 = 4;

#[test]
fn tensorboard_shows_a_training_session() -> Fallible {
    let folder = Folder::new("tensorboard")?;
    train(folder.path())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tensorboard/shown.py");
    let mut command = Command::new(environment::ensure_environment("tensorboard", &[TENSORBOARD])?);
    let output =
        environment::run(command.arg(script).arg(folder.path()).env("PYTHONDONTWRITEBYTECODE", "1"))?;
    let shown = output.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(shown, 6, "{output}");
    Ok(())
}

/// Trains `w = [8, 16]`, which each step halves, and writes all kinds of events.
fn train(folder: &Path) -> Fallible {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let optimizer = Optimizer::gradient_descent(0.5);
    let first = Initializer::Value(Tensor::vector(&[8.0f32, 16.0])?);
    let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let w = variables.get("w", DType::Float, &[2], &first);
        scope.mul(scope.sum(scope.square(w.value), &[0], false), scope.constant(0.5f32))
    })?;
    let w = variables.find("w").ok_or("no variable")?;
    let picture: Vec<u8> = (0..2 * 3 * 3).map(|i| i * 10).collect();
    let picture = scope.constant(Tensor::from_slice(&picture, Shape::new(&[1, 2, 3, 3])?)?);
    let summary = scope.merge_summaries(&[
        scope.scalar_summary("loss", training.loss),
        scope.histogram_summary("weights", w.value),
        scope.image_summary("picture", picture, 1),
        scope.text_summary("note", scope.constant("a **note**")),
    ]);
    let events = Events::create(folder)?;
    let all: Vec<Box<dyn Hook>> = vec![
        Box::new(hooks::StopAtStep { last_step: STEPS }),
        Box::new(hooks::SummarySaver::new(summary, Period::Steps(1), events.clone())),
        Box::new(hooks::Profiler::new(Period::Steps(2), events)),
    ];
    let server = Master::InProcess(Arc::new(Server::new(ServerConfig::default())?));
    let (train, config) = (training.train, MonitoredConfig::default());
    let mut session = MonitoredSession::new(server, scope.finish()?, training, None, all, config)?;
    while session.run(&[], &[], &[train])?.is_some() {}
    Ok(session.finish()?)
}
