//! What holds without a GPU.

use crate::support::Fallible;
use client::Session;
use executor::gpus;
use graph::Scope;

#[test]
fn the_doctor_tells_of_each_library_and_of_gpus() -> Fallible {
    let output = crate::anabranch().arg("doctor").output()?;
    let text = String::from_utf8(output.stdout)?;
    assert!(output.status.success(), "{text}");
    for library in ["libcuda ", "libnvrtc ", "libcublas ", "libcudnn ", "libnccl "] {
        assert_eq!(text.lines().filter(|line| line.starts_with(library)).count(), 1, "{library}: {text}");
    }
    let last = text.lines().last().unwrap_or_default();
    match gpus::found(&gpus::Visible::All) {
        Ok(_) => assert!(last.starts_with("device: "), "{text}"),
        Err(error) => assert_eq!(last, format!("no GPU: {error}")),
    }
    Ok(())
}

/// TensorFlow's text.
#[test]
fn a_gpu_that_is_not_there_is_refused_when_the_graph_is_placed() -> Fallible {
    if gpus::found(&gpus::Visible::All).is_ok() {
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

/// A process that finds no GPU prints what a TensorFlow without CUDA does.
#[test]
fn messages_name_the_cpu_alone() -> Fallible {
    if gpus::found(&gpus::Visible::All).is_ok() {
        return Ok(());
    }
    let text = executor::registered_kernels("AddV2");
    assert!(text.contains("device='CPU'") && !text.contains("GPU"), "{text}");
    Ok(())
}
