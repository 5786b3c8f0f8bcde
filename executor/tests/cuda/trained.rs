//! Whole programs on a GPU that computes in software: they train as on the CPU, are saved behind their steps, stop and go on, and
//! take input that waits on the GPU.

use super::Fallible;
use super::recording::Recording;
use anabranch_executor::CpuDevice;
use anabranch_executor::cuda::CudaDevice;
use anabranch_executor::device::Device;
use anabranch_executor::gpus::GpuOptions;
use client::{Server, ServerConfig};
use graph::{DType, DeviceName, Output, Scope, Tensor};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use train::{
    Dataset, Every, Hook, Initializer, Keep, Master, MonitoredConfig, MonitoredSession, Optimizer, Saver,
    Strategy, Variables, hooks,
};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("anabranch-trained-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may not have been made.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process by itself, with a GPU or without.
struct Machine {
    master: Master,
    gpu: Option<Arc<Recording>>,
}

impl Machine {
    fn new(has_gpu: bool) -> Fallible<Machine> {
        let config = ServerConfig { threads: 2, ..ServerConfig::default() };
        let name = |kind: &str| DeviceName::new(&config.task, kind, 0);
        let mut devices: Vec<Arc<dyn Device>> = vec![Arc::new(CpuDevice::new(name("CPU"), 1, 1 << 30))];
        let gpu = has_gpu.then(|| Arc::new(Recording::new(1 << 26).that_computes().with_one_block()));
        if let Some(gpu) = &gpu {
            devices.push(Arc::new(CudaDevice::over(gpu.clone(), name("GPU"), &GpuOptions::default())?));
        }
        Ok(Machine { master: Master::InProcess(Arc::new(Server::with_devices(config, devices)?)), gpu })
    }
}

const ROWS: usize = 24;

/// Trains a layer on rows of its input, from the newest checkpoint to a step, or to the end of its input; its weights then.
fn train(machine: &Machine, folder: &Path, last_step: i64) -> Fallible<Tensor> {
    let scope = Scope::new();
    let (host, device) = match machine.gpu {
        Some(_) => (scope.device("/device:CPU:0"), scope.device("/device:GPU:0")),
        None => (scope.clone(), scope.clone()),
    };
    let numbers: Vec<f32> = (0..ROWS * 3).map(|i| ((i * 7) % 11) as f32 / 8.0).collect();
    let rows = Tensor::from_slice(&numbers, [ROWS, 3].try_into()?)?;
    let input =
        Dataset::from_tensors(&host, &[rows]).repeat(None).batch(4, true).input("rows").ahead(&device, 2);
    let variables = Variables::new(&scope);
    let optimizer = Optimizer::adam(0.1);
    let training = Strategy::Local.minimize(
        &scope,
        &variables,
        &optimizer,
        &input.next,
        |scope, variables, batch| {
            let w = variables.get("w", DType::Float, &[3, 5], &Initializer::GlorotUniform { seed: 3 });
            let b = variables.get("b", DType::Float, &[5], &Initializer::Zeros);
            let out = scope.relu(scope.bias_add(scope.matmul(batch[0], w.value), b.value));
            scope.mean(scope.square(scope.sub(out, scope.constant(1.0f32))), &[0, 1], false)
        },
    )?;
    let weights: Vec<Output> = variables.find("w").iter().map(|w| w.value).collect();
    let saver = Arc::new(Saver::new(&scope, &variables.all(), Keep::default()));
    let save = hooks::CheckpointSaver::new(saver.clone(), folder, training.global_step, Every::Steps(2));
    let hooks: Vec<Box<dyn Hook>> =
        vec![input.hook(), Box::new(save.asynchronous()), Box::new(hooks::StopAtStep { last_step })];
    let config = MonitoredConfig { checkpoint_folder: Some(folder.to_owned()), ..MonitoredConfig::default() };
    let step = training.train;
    let mut session =
        MonitoredSession::new(machine.master.clone(), scope.finish()?, training, Some(saver), hooks, config)?;
    while session.run(&[], &[], &[step])?.is_some() {}
    let weights = session.session().run(&[], &weights, &[])?.remove(0);
    session.finish()?;
    Ok(weights)
}

#[test]
fn a_program_trains_on_a_gpu_as_on_the_cpu_and_goes_on_from_what_it_has_saved() -> Fallible {
    // As many steps as take all rows some times, so that whoever goes on begins with the first again.
    let (half, whole) = (12, 24);
    let (with, without) = (Machine::new(true)?, Machine::new(false)?);
    let (on_gpu, on_cpu, parted) = (Folder::new("gpu"), Folder::new("cpu"), Folder::new("parted"));
    let expected = train(&without, &on_cpu.0, whole)?;
    let undisturbed = train(&with, &on_gpu.0, whole)?;
    train(&with, &parted.0, half)?;
    assert_eq!(train(&with, &parted.0, whole)?, undisturbed);
    for (a, b) in undisturbed.values::<f32>()?.iter().zip(expected.values::<f32>()?) {
        assert!((a - b).abs() < 1e-4, "{undisturbed:?} is not {expected:?}");
    }
    let gpu = with.gpu.ok_or("no GPU")?;
    let log = gpu.log();
    let launches = log.iter().filter(|line| line.contains("graph")).count();
    assert!(launches > 20, "{launches} of {} were whole graphs", log.len());
    assert_eq!(gpu.races(), Vec::<String>::new());
    Ok(())
}
