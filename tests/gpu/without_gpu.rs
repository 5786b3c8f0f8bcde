//! Behaviour on machines without a GPU.

use crate::support::Fallible;
use crate::support::cluster::free_port;
use client::Session;
use cuda::gpus;
use device::gpu_options;
use graph::Scope;
use std::process::Stdio;

#[test]
fn doctor_reports_libraries_and_gpus() -> Fallible {
    let output = crate::anabranch().arg("doctor").output()?;
    let text = String::from_utf8(output.stdout)?;
    assert!(output.status.success(), "{text}");
    for library in ["libcuda ", "libnvrtc ", "libcublas ", "libcublasLt ", "libcudnn ", "libnccl "] {
        assert_eq!(text.lines().filter(|line| line.starts_with(library)).count(), 1, "{library}: {text}");
    }
    match gpus::find_gpus(&gpu_options::GpuSelection::All) {
        Ok(_) => assert!(text.lines().any(|line| line.starts_with("device: ")), "{text}"),
        Err(error) => assert!(text.lines().any(|line| line == format!("no GPU: {error}")), "{text}"),
    }
    for fact in ["shared memory", "RDMA"] {
        assert!(text.contains(fact), "{fact}: {text}");
    }
    Ok(())
}

/// A node on a missing GPU fails with TensorFlow's error message.
#[test]
fn missing_gpu_is_a_placement_error() -> Fallible {
    if gpus::find_gpus(&gpu_options::GpuSelection::All).is_ok() {
        return Ok(());
    }
    let scope = Scope::new();
    let gpu = scope.device("/device:GPU:0");
    let a = gpu.constant(1.0f32);
    gpu.op("Exp").name("e").input(a).node();
    let error = Session::local(scope.finish()?).err().ok_or("no error")?;
    let message = error.to_string();
    assert!(message.contains("Cannot assign a device for operation"), "{message}");
    assert!(
        message.contains("was explicitly assigned to /device:GPU:0 but available devices are [ "),
        "{message}"
    );
    assert!(
        message.contains("The requested device appears to be a GPU, but CUDA is not enabled."),
        "{message}"
    );
    Ok(())
}

/// Without a GPU, error messages list only CPU kernels, like those of a TensorFlow that is built without
/// CUDA.
#[test]
fn registered_kernels_list_only_the_cpu() -> Fallible {
    if gpus::find_gpus(&gpu_options::GpuSelection::All).is_ok() {
        return Ok(());
    }
    let text = worker::offered_kernels("AddV2");
    assert!(text.contains("device='CPU'") && !text.contains("GPU"), "{text}");
    Ok(())
}

/// Checks that the worker logs one line about GPUs, and that it serves without a GPU.
#[test]
fn worker_starts_and_logs_its_gpus() -> Fallible {
    let cluster = format!("worker={}", free_port()?);
    let mut worker = crate::anabranch();
    worker.args(["worker", "--stop-with-stdin", "--job", "worker", "--cluster", &cluster]);
    // Standard input is closed, so the worker stops as soon as it serves.
    let output = worker.env_remove("TF_CONFIG").env_remove("RUST_LOG").stdin(Stdio::null()).output()?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("GPU")).collect();
    let [line] = lines[..] else { panic!("{log}") };
    match gpus::find_gpus(&gpu_options::GpuSelection::All) {
        Ok(found) => assert!(line.ends_with(&format!("GPUs: {}", found.join("; "))), "{line}"),
        Err(error) => assert!(line.ends_with(&format!("no GPU is offered: {error}")), "{line}"),
    }
    assert!(log.contains("has stopped"), "{log}");
    Ok(())
}

#[test]
fn worker_does_not_start_with_a_missing_gpu_number() -> Fallible {
    let mut worker = crate::anabranch();
    worker.args(["worker", "--stop-with-stdin", "--job", "worker", "--cluster", "worker=127.0.0.1:0"]);
    worker.args(["--gpus", "4096"]).env_remove("TF_CONFIG").env_remove("RUST_LOG").stdin(Stdio::null());
    let output = worker.output()?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{log}");
    let why = gpus::devices(
        &graph::TaskName::new("worker", 0),
        &gpu_options::GpuOptions {
            visible: gpu_options::GpuSelection::Listed(vec![4096]),
            ..gpu_options::GpuOptions::default()
        },
        || 1,
    );
    let why = why.err().ok_or("there are many GPUs here")?.to_string();
    assert!(log.contains(&why), "{log} does not say {why}");
    Ok(())
}
