//! Training that is saved behind its steps, stopped, and goes on. Without a GPU, the same with a CPU in its place.

use super::Fallible;
use client::{Server, ServerConfig};
use graph::{DType, Output, Scope, Tensor};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use train::{
    Every, Hook, Initializer, Keep, Master, MonitoredConfig, MonitoredSession, Optimizer, Saver, Strategy,
    Variables, hooks,
};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("anabranch-saved-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may not have been made.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Trains a table, all of whose elements go to 1, from the newest checkpoint to a step; what is in it then.
fn train(folder: &Path, last_step: i64) -> Fallible<Tensor> {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let optimizer = Optimizer::adam(0.1);
    let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let first = Initializer::GlorotUniform { seed: 3 };
        let table = variables.get("table", DType::Float, &[300, 100], &first);
        scope.sum(scope.square(scope.sub(table.value, scope.constant(1.0f32))), &[0, 1], false)
    })?;
    let trained: Vec<Output> = variables.trainable().iter().map(|variable| variable.value).collect();
    let saver = Arc::new(Saver::new(&scope, &variables.all(), Keep::default()));
    let save = hooks::CheckpointSaver::new(saver.clone(), folder, training.global_step, Every::Steps(2));
    let hooks: Vec<Box<dyn Hook>> =
        vec![Box::new(save.asynchronous()), Box::new(hooks::StopAtStep { last_step })];
    let config = MonitoredConfig { checkpoint_folder: Some(folder.to_owned()), ..MonitoredConfig::default() };
    let server =
        Master::InProcess(Arc::new(Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?));
    let step = training.train;
    let mut session = MonitoredSession::new(server, scope.finish()?, training, Some(saver), hooks, config)?;
    while session.run(&[], &[], &[step])?.is_some() {}
    let table = session.session().run(&[], &trained, &[])?.remove(0);
    session.finish()?;
    Ok(table)
}

#[test]
fn what_was_saved_behind_its_steps_goes_on_as_if_it_had_not_stopped() -> Fallible {
    let (whole, parted) = (Folder::new("whole"), Folder::new("parted"));
    let undisturbed = train(&whole.0, 20)?;
    train(&parted.0, 9)?;
    assert_eq!(train(&parted.0, 20)?, undisturbed);
    Ok(())
}
