//! Training with prefetched input and asynchronous checkpoints, stopped and resumed, on a GPU or, without a GPU, on the
//! CPU.

use super::Fallible;
use super::folder::Folder;
use graph::{DType, Output, Scope, Tensor};
use std::path::Path;
use std::sync::Arc;
use train::{
    Dataset, Hook, Initializer, Master, MonitoredConfig, MonitoredSession, Optimizer, Period, Retention,
    Saver, Strategy, Variables, hooks,
};

const ROWS: usize = 24;
const BATCH: usize = 4;

/// Adds a dense layer with ReLU, and returns the mean squared difference between its outputs and 1.
pub(crate) fn loss(scope: &Scope, variables: &Variables, batch: &[Output]) -> Output {
    let w = variables.get("w", DType::Float, &[3, 5], &Initializer::GlorotUniform { seed: 3 });
    let b = variables.get("b", DType::Float, &[5], &Initializer::Zeros);
    let out = scope.relu(scope.bias_add(scope.matmul(batch[0], w.value), b.value));
    scope.mean(scope.square(scope.sub(out, scope.constant(1.0f32))), &[0, 1], false)
}

/// Returns a batch of `count` rows for [`loss`].
pub(crate) fn rows(count: usize) -> Fallible<Tensor> {
    let numbers: Vec<f32> = (0..count * 3).map(|i| ((i * 7) % 11) as f32 / 8.0).collect();
    Ok(Tensor::from_slice(&numbers, [count, 3].try_into()?)?)
}

/// Trains from the newest checkpoint to step `last_step`, with input prefetched to `device`; returns the weights.
pub(crate) fn train(master: &Master, device: &str, folder: &Path, last_step: i64) -> Fallible<Tensor> {
    let scope = Scope::new();
    let (host, device) = (scope.device("/device:CPU:0"), scope.device(device));
    let rows = Dataset::from_tensors(&host, &[rows(ROWS)?]).repeat(None).batch(BATCH as i64, true);
    let input = rows.input("rows").prefetch_to_device(&device, 2);
    let (variables, optimizer) = (Variables::new(&scope), Optimizer::adam(0.1));
    let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &input.next, loss)?;
    let weights = variables.find("w").ok_or("no weights")?.value;
    let saver = Arc::new(Saver::new(&scope, &variables.all(), Retention::default()));
    let save = hooks::CheckpointSaver::new(saver.clone(), folder, training.global_step, Period::Steps(2));
    let hooks: Vec<Box<dyn Hook>> =
        vec![input.hook(), Box::new(save.asynchronous()), Box::new(hooks::StopAtStep { last_step })];
    let config = MonitoredConfig { checkpoint_folder: Some(folder.to_owned()), ..MonitoredConfig::default() };
    let step = training.train;
    let mut session =
        MonitoredSession::new(master.clone(), scope.finish()?, training, Some(saver), hooks, config)?;
    while session.run(&[], &[], &[step])?.is_some() {}
    let weights = session.session().run(&[], &[weights], &[])?.remove(0);
    session.finish()?;
    Ok(weights)
}

#[test]
fn training_resumes_from_a_background_checkpoint() -> Fallible {
    // A resumed run reads its input from the first row, so each half of the training reads all rows twice. Each run has
    // a separate server, because the first run's server would still have the variables.
    let half = (2 * ROWS / BATCH) as i64;
    let trained = |folder: &Folder, last_step: i64| -> Fallible<Tensor> {
        let (master, device) = crate::machine()?;
        train(&master, device, folder.path(), last_step)
    };
    let (whole, parted) = (Folder::new("whole")?, Folder::new("parted")?);
    let undisturbed = trained(&whole, 2 * half)?;
    // NVIDIA's libraries may choose another algorithm for a product in each run, so the last bits may differ.
    assert!(apart(&trained(&parted, half)?, &undisturbed)? > 1e-2, "nothing is learned in the second half");
    assert!(apart(&trained(&parted, 2 * half)?, &undisturbed)? < 1e-4);
    Ok(())
}

/// Returns the largest absolute difference between corresponding elements, or NaN if an element is NaN.
fn apart(one: &Tensor, other: &Tensor) -> Fallible<f32> {
    let pairs = one.values::<f32>()?.iter().zip(other.values::<f32>()?);
    Ok(pairs.map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).ok_or("there are no elements")?)
}
