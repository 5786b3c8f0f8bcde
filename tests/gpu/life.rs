//! Training on a GPU, and memory that does not suffice.

use super::kernels::upload;
use crate::support::Fallible;
use executor::gpus::GpuOptions;
use executor::testing::run_node_on;
use graph::{Code, DType, Node, Shape, Tensor};

/// The first placement of each op falls on the GPU where it has a kernel.
#[test]
fn the_demo_learns() -> Fallible {
    if crate::first_gpu(&GpuOptions::default())?.is_none() {
        return Ok(());
    }
    let demo = crate::anabranch().arg("demo").output()?;
    let text = String::from_utf8_lossy(&demo.stdout).into_owned();
    assert!(demo.status.success(), "{text}\n{}", String::from_utf8_lossy(&demo.stderr));
    assert!(text.contains("GPU:0"), "nothing ran on the GPU: {text}");
    Ok(())
}

#[test]
fn memory_that_does_not_suffice_is_an_error_and_the_next_step_runs() -> Fallible {
    let options = GpuOptions { memory_fraction: 0.01, ..GpuOptions::default() };
    let Some(device) = crate::first_gpu(&options)? else { return Ok(()) };
    let op = graph::ops::lookup("Fill").ok_or("no Fill")?;
    let fill = Node::new("fill", op).with_attr("T", DType::Float);
    let value = upload(&device, Tensor::scalar(1.0f32))?;
    let filled = |dims: &[i32]| -> Fallible<executor::Result<Vec<executor::Value>>> {
        Ok(run_node_on(&device, &fill, vec![Tensor::vector(dims)?.into(), value.clone()]))
    };
    let error = filled(&[1 << 20, 1 << 10])?.err().ok_or("four gigabytes were there")?;
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(
        error.to_string().contains("for fill on /job:localhost/replica:0/task:0/device:GPU:0"),
        "{error}"
    );
    let small = filled(&[4])?.map_err(|e| e.to_string())?.remove(0);
    let small = super::kernels::download(&device, small)?;
    assert_eq!(small, Tensor::full(1.0f32, Shape::new(&[4])?)?);
    Ok(())
}
